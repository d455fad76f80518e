package main

import (
	"bufio"
	"context"
	"crypto/tls"
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

// newFloorCommand returns a program that does only the necessary work of a fan-out: it writes
// prepared frames to every connection. No server can deliver events at a lower cost. It listens,
// announces its address, and treats every connection as a watch. It writes the frames from its
// standard input to all connections.
func newFloorCommand() *cobra.Command {
	var over string
	cmd := &cobra.Command{Use: "floor", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		// A read that blocks its thread would keep the runtime's monitor busy. That would cost more
		// than the frames.
		if err := syscall.SetNonblock(syscall.Stdin, true); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		return serveFloor(os.NewFile(uintptr(syscall.Stdin), "stdin"), os.Stdout, over)
	}}
	cmd.Flags().StringVar(&over, "over", "", "")
	return cmd
}

func serveFloor(frames io.Reader, out io.Writer, over string) error {
	l, err := listen(out, over != "")
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
			if over == "h2" {
				go open.watch2(c.(*tls.Conn))
			} else {
				go open.watch(c)
			}
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
		for _, half := range [][]stream{all[:len(all)/2], all[len(all)/2:]} {
			halves.Go(func() {
				for _, c := range half {
					c.write(frame) // errors of clients that have left do not matter
				}
			})
		}
		halves.Wait()
	}
}

// conns has the floor's open watches.
type conns struct {
	mu   sync.Mutex
	open []stream // copied when a watch leaves
}

func (cs *conns) all() []stream {
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
	cs.open = append(cs.open, stream{c, 0})
	cs.mu.Unlock()
	_, _ = io.Copy(io.Discard, from)
	cs.leave(c)
}

// leave removes the watches of a connection.
func (cs *conns) leave(c net.Conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.open = slices.DeleteFunc(slices.Clone(cs.open), func(s stream) bool { return s.Conn == c })
}

// stream is a watch of the floor: a connection, or an HTTP/2 stream of a connection.
type stream struct {
	net.Conn
	id uint32 // 0 for HTTP/1.1
}

// write writes a frame, or an event in a DATA frame.
func (s stream) write(frame []byte) {
	if s.id != 0 {
		head := []byte{byte(len(frame) >> 16), byte(len(frame) >> 8), byte(len(frame)), 0, 0}
		frame = append(binary.BigEndian.AppendUint32(head, s.id), frame...)
	}
	_, _ = s.Write(frame) // errors of clients that have left do not matter
}

// startFloor starts the floor. over is empty for plain HTTP, "tls" or "h2". Each write makes the
// floor write the frame to all watches. On its standard input, the frame's length precedes the frame.
func startFloor(over string, frame []byte) (*child, written, error) {
	c, err := startChild("", over != "", "floor", "--over="+over)
	if err != nil {
		return nil, written{}, err
	}
	return c, written{c.server, func(context.Context, int) error {
		_, err := c.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
		return err
	}}, nil
}
