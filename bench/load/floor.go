package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// floor is a program that does only the necessary work of a fan-out: it writes ready frames to
// every connection. A watch cannot cost less.
type floor struct{ *child }

// newFloorCommand makes the program. It listens, announces its address, and treats every connection
// as a watch. It writes the frames from its standard input to all connections.
func newFloorCommand() *cobra.Command {
	var secure bool
	cmd := &cobra.Command{Use: "floor", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		// A read that blocks its thread would keep the runtime's monitor busy, for longer than the
		// frames take.
		if err := syscall.SetNonblock(syscall.Stdin, true); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		return serveFloor(os.NewFile(uintptr(syscall.Stdin), "stdin"), os.Stdout, secure)
	}}
	cmd.Flags().BoolVar(&secure, "tls", false, "")
	return cmd
}

func serveFloor(frames io.Reader, out io.Writer, secure bool) error {
	l, err := listen(out, secure)
	if err != nil {
		return err
	}
	var open conns
	defer func() {
		_ = l.Close()
		for _, c := range open.all() {
			_ = c.Close()
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go open.watch(c)
		}
	}()
	for {
		var size uint32
		if err := binary.Read(frames, binary.BigEndian, &size); err != nil {
			return nil // the parent has ended
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(frames, frame); err != nil {
			return nil
		}
		all := open.all()
		var halves sync.WaitGroup
		for _, half := range [][]net.Conn{all[:len(all)/2], all[len(all)/2:]} {
			halves.Go(func() {
				for _, c := range half {
					_, _ = c.Write(frame) // a client that is gone is gone
				}
			})
		}
		halves.Wait()
	}
}

// conns are the floor's open watches.
type conns struct {
	mu   sync.Mutex
	open []net.Conn // a new array when one leaves
}

func (cs *conns) all() []net.Conn {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open
}

// watch treats a connection as a watch until its client leaves.
func (cs *conns) watch(c net.Conn) {
	defer c.Close() //nolint:errcheck // no client is there
	from := bufio.NewReader(c)
	if _, err := http.ReadRequest(from); err != nil {
		return
	}
	cs.mu.Lock()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	cs.open = append(cs.open, c)
	cs.mu.Unlock()
	_, _ = io.Copy(io.Discard, from)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if i := slices.Index(cs.open, c); i >= 0 {
		cs.open = slices.Delete(slices.Clone(cs.open), i, i+1)
	}
}

// startFloor starts the floor.
func startFloor(secure bool) (floor, error) {
	c, err := startChild("", secure, "floor", fmt.Sprintf("--tls=%t", secure))
	return floor{c}, err
}

// write makes the floor write a frame to all watches. The frame's length precedes the frame.
func (f floor) write(_ context.Context, frame []byte) error {
	_, err := f.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}
