package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/h2/frame"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Clients open 2,000 connections one after another, while their servers drain. Each connection gets
// an answer or is refused. None is accepted and then closed.
func TestBacklogIsServed(t *testing.T) {
	const (
		servers = 25 // of each kind
		drain   = time.Minute
	)
	sessions := tls.NewLRUClientSessionCache(2) // most handshakes need no signature
	config, random := tlsConfig(t), rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	for name, kind := range map[string]struct {
		connections int // on average, before a drain
		network     string
		config      *tls.Config
		ask         func(c net.Conn) error
	}{
		"HTTP/1.1": {30, "tcp", nil, answered},
		"HTTP/1.1 with TLS": {10, "tcp", config, func(c net.Conn) error {
			return answered(overTLS(c, "http/1.1", sessions))
		}},
		"HTTP/2": {10, "tcp", config, func(c net.Conn) error {
			return answeredOverHTTP2(overTLS(c, http2.NextProtoTLS, sessions))
		}},
		"Unix socket": {30, "unix", nil, answered},
	} {
		t.Run(name, func(t *testing.T) {
			var clients sync.WaitGroup
			for i := range servers {
				address := "127.0.0.1:0"
				if kind.network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
				}
				lc := net.ListenConfig{}
				lc.SetMultipathTCP(false) // the kernel does not support filters with it
				l, err := lc.Listen(t.Context(), kind.network, address)
				if err != nil {
					t.Fatal(err)
				}
				before := max(0, 2*kind.connections*(servers-i)/servers+random.IntN(2)-1) // the connections before the drain
				clients.Go(func() {
					begin, end := newServer(answers(i%2 == 0), kind.config, drain).runs(t, l)
					defer end()
					for n := 0; ; n++ {
						c, err := net.Dial(kind.network, l.Addr().String())
						if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
							if n <= before {
								t.Errorf("connection %d was refused before the drain", n)
							}
							return
						}
						if err == nil {
							err = c.SetDeadline(time.Now().Add(drain))
						}
						if n == before {
							begin() // while the client sends its request
						}
						if err == nil {
							err = errors.Join(kind.ask(c), c.Close())
						}
						if err != nil {
							t.Errorf("connection %d of %d before the drain: %v", n, before, err)
							return
						}
					}
				})
			}
			clients.Wait()
		})
	}
}

func answered(c net.Conn) error {
	_, err := ask(c)
	return err
}

// answeredOverHTTP2 sends a request. It returns nil if there is an answer, or if a GOAWAY says that
// the request was not processed.
func answeredOverHTTP2(c net.Conn) error {
	_, err := c.Write([]byte(http2.ClientPreface))
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(frame.TableSize, nil)
	err = errors.Join(err, f.WriteSettings(), f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, EndStream: true, EndHeaders: true,
		BlockFragment: []byte("\x82\x87\x04\x08/version\x41\x01a"), // GET, https, :path, :authority
	}))
	for err == nil {
		var got http2.Frame
		if got, err = f.ReadFrame(); err != nil {
			break
		}
		switch got := got.(type) {
		case *http2.PingFrame:
			err = f.WritePing(true, got.Data)
		case *http2.GoAwayFrame:
			if got.LastStreamID == 0 {
				return nil
			}
		case *http2.MetaHeadersFrame, *http2.DataFrame:
			if got.Header().Flags.Has(http2.FlagDataEndStream) {
				return nil
			}
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("the stream was reset: %v", got.ErrCode)
		}
	}
	return err
}
