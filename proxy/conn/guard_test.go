package conn

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// A guard that fires as its write ends leaves no connection whose next write would fail.
func TestGuardFiresAtTheEndOfAWrite(t *testing.T) {
	for range 1000 { // the client or the guard may be first
		synctest.Test(t, func(t *testing.T) {
			client, accepted := conntest.Pipe(63 << 10)
			c := New(accepted)
			c.Stall = time.Minute
			room := fair.NewPool(1, true) // full
			c.Guard = fair.NewGuard(64<<10, func() (*fair.Pool, string) { return room, "u" }, func() { c.LimitWrites(time.Now()) })
			go func() {
				time.Sleep(time.Second) // the guard's patience
				_, _ = io.Copy(io.Discard, client)
			}()
			_, first := c.Write(make([]byte, 64<<10))
			synctest.Wait()
			c.Guard = nil // the stream ends, and a request follows
			if _, second := c.Write([]byte("HTTP/1.1 201 Created")); first == nil && second != nil {
				t.Fatalf("the write that was too late succeeded, but the next one fails: %v", second)
			}
			if err := errors.Join(c.Close(), client.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
