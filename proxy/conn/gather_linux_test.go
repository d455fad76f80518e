package conn

import (
	"syscall"
	"testing"
	"time"
)

// The kernel wakes a gathered read only for many bytes, and any other read for one.
func TestKernelWakesForManyBytes(t *testing.T) {
	client, server := inKernel(t)
	defer server.Close()
	if err := server.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, want int) {
		t.Helper()
		raw, err := server.socket.Conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if got, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT); err != nil || max(1, got) != want {
				t.Errorf("%s: the kernel waits for %d bytes (%v), want %d", when, got, err, want)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(text string) {
		t.Helper()
		if _, err := client.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if n, err := server.Read(got); err != nil || string(got[:n]) != text {
			t.Fatalf("%q, %v instead of %q", got[:n], err, text)
		}
	}
	read("before")
	expect("before", 1)
	server.Gather(time.Minute)
	for range 100 { // a read that finds nothing waits for one byte
		if read("gathered"); server.socket.gather.wakeAt == gatherMax {
			break
		}
	}
	expect("gathered", gatherMax)
	server.Gather(0)
	read("after")
	expect("after", 1)
}
