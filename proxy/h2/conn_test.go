package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/h2/frame"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type handler func(context.Context, *exchange.Request) *exchange.Response

// Handle implements Handler.
func (h handler) Handle(
	ctx context.Context, req *exchange.Request, _ *exchange.Route,
) *exchange.Response {
	return h(ctx, req)
}

// Answered implements Handler.
func (handler) Answered(*exchange.Request, exchange.Route, *exchange.Response, time.Duration) (written func(int64)) {
	return func(int64) {}
}

// peer is a client that sends and reads single frames, and the server's end of its connection.
type peer struct {
	net.Conn
	*http2.Framer
	t       *testing.T
	block   bytes.Buffer
	encoder *hpack.Encoder
	served  chan struct{}
}

const (
	// unread is the number of unread bytes that a connection holds.
	unread = 64 << 10
	// patience is the time in which everything must happen.
	patience = 2 * time.Minute
)

func options() Options {
	return Options{Stall: time.Minute, Limits: exchange.Limits{
		HeaderBytes: 64 << 10, Read: 30 * time.Second, Write: time.Minute, Idle: time.Minute,
	}}
}

// dial connects a client. Each direction of its connection holds few unread bytes.
func dial(t *testing.T, s *Server, settings ...http2.Setting) *peer {
	t.Helper()
	client, accepted := conntest.Pipe(unread)
	if err := client.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return greet(t, s, client, known(accepted), settings)
}

// dialStranger is like dial, but no request of the client is authenticated.
func dialStranger(t *testing.T, s *Server, settings ...http2.Setting) *peer {
	t.Helper()
	client, accepted := conntest.Pipe(unread)
	if err := client.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return greet(t, s, client, conn.New(accepted), settings)
}

// known returns a connection that counts against a user's limit.
func known(accepted net.Conn) *conn.Conn {
	nc := conn.New(accepted)
	nc.HoldAs("user", func() (giveBack func(), ok bool) { return func() {}, true })
	return nc
}

func greet(t *testing.T, s *Server, client net.Conn, nc *conn.Conn, settings []http2.Setting) *peer {
	t.Helper()
	p := &peer{Conn: client, Framer: http2.NewFramer(client, client), t: t, served: serving(s, nc)}
	p.ReadMetaHeaders = hpack.NewDecoder(frame.TableSize, nil)
	p.encoder = hpack.NewEncoder(&p.block)
	t.Cleanup(func() {
		client.Close()
		select {
		case <-p.served:
		case <-time.After(patience):
			t.Error("the connection is still served after its client left")
		}
	})
	_, err := io.WriteString(client, http2.ClientPreface)
	p.sent(errors.Join(err, p.WriteSettings(settings...)))
	return p
}

func newServer(h handler, o Options) *Server {
	return &Server{
		Handler: h, Options: func() Options { return o }, Slots: fair.NewSlots(1), Strangers: NewStrangers(),
		Metrics: metrics.New(prometheus.NewRegistry()), Log: zap.NewNop(),
		Serving: context.Background(), Draining: context.Background(),
	}
}

func (p *peer) sent(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// many writes a frame many times.
func (p *peer) many(kind http2.FrameType, flags http2.Flags, id uint32, payload ...byte) error {
	const times = 1000
	one := append(frame.AppendHead(nil, len(payload), kind, flags, id), payload...)
	_, err := p.Write(bytes.Repeat(one, times))
	return err
}

func (p *peer) request(id uint32, end bool, method string, more ...string) {
	p.t.Helper()
	p.block.Reset()
	all := append([]string{
		":method", method, ":scheme", "https", ":authority", "a", ":path", "/version",
	}, more...)
	for i := 0; i < len(all); i += 2 {
		_ = p.encoder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	p.sent(p.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: p.block.Bytes(), EndStream: end, EndHeaders: true,
	}))
}

// until reads frames up to the first wanted frame. It fails the test if there is none in time.
func (p *peer) until(what string, wanted func(http2.Frame) bool) http2.Frame {
	p.t.Helper()
	var seen []string
	for {
		f, err := p.ReadFrame()
		if err != nil {
			p.t.Fatalf("no %s: %v; there were %v", what, err, seen)
		}
		if wanted(f) {
			return f
		}
		seen = append(seen, fmt.Sprint(f.Header()))
	}
}

func data(id uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		d, ok := f.(*http2.DataFrame)
		return ok && d.StreamID == id && d.Length > 0
	}
}

func ended(id uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		h := f.Header()
		return h.StreamID == id && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) &&
			h.Flags.Has(http2.FlagDataEndStream)
	}
}

func isReset(id uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		_, ok := f.(*http2.RSTStreamFrame)
		return ok && f.Header().StreamID == id
	}
}

func pong(f http2.Frame) bool { ping, ok := f.(*http2.PingFrame); return ok && ping.IsAck() }

func says(text string) *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
	resp.Bytes = []byte(text)
	return resp
}

func saying(text string) handler {
	return func(context.Context, *exchange.Request) *exchange.Response { return says(text) }
}

// The deadline of a write that waits for the client does not break later writes that do not wait.
func TestQuietConnectionIsWrittenAfterTheStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Stall = 100 * time.Millisecond
		p := dial(t, newServer(saying("hello"), o))
		p.request(1, true, "GET")
		p.until("answer", ended(1))
		time.Sleep(3 * o.Stall)
		p.sent(p.WritePing(false, [8]byte{}))
		p.until("answer to a ping", pong)
	})
}

// Padding is returned to the window.
func TestPaddingIsGivenBack(t *testing.T) {
	p := dial(t, newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
		n, err := io.Copy(io.Discard, req.Body)
		return says(fmt.Sprint(n, err))
	}, options()))
	p.request(1, false, "POST")
	go func() {
		for range 2 * windowStream / 256 {
			_ = p.WriteDataPadded(1, false, []byte("x"), make([]byte, 255))
		}
		_ = p.WriteData(1, true, nil)
	}()
	p.until("answer", func(f http2.Frame) bool {
		if _, ok := f.(*http2.RSTStreamFrame); ok {
			t.Fatal(f)
		}
		return ended(1)(f)
	})
}

// Responses to a client that does not read need only a little more memory than the buffer.
func TestUnreadAnswersAreBounded(t *testing.T) {
	times := map[string]int{"answers": 2000, "heads": 2000, "padding": 50, "bytes": 50}
	for name, send := range map[string]func(p *peer, i int) error{
		"answers": func(p *peer, i int) error { p.request(uint32(2*i+1), true, "GET"); return nil },
		"heads":   func(p *peer, i int) error { p.request(uint32(2*i+1), true, "HEAD"); return nil },
		"padding": func(p *peer, i int) error {
			if i == 0 {
				p.request(1, false, "PUT")
			}
			return p.many(http2.FrameData, http2.FlagDataPadded, 1, 0)
		},
		"bytes": func(p *peer, i int) error {
			if i == 0 {
				p.request(1, false, "POST")
			}
			return p.many(http2.FrameData, 0, 1, 'x')
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c atomic.Pointer[Conn]
				s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
					c.Store(req.Client.(*stream).c)
					switch req.Method {
					case http.MethodPut:
						<-ctx.Done()
					case http.MethodPost:
						for p := make([]byte, 1); ; {
							if _, err := req.Body.Read(p); err != nil {
								break
							}
						}
					}
					if req.Method != http.MethodHead && req.Method != http.MethodGet {
						return says("")
					}
					resp := says(strings.Repeat("x", 32<<10))
					resp.Header.Set("Warning", strings.Repeat("w", 512))
					return resp
				}, options())
				p := dial(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowMax})
				p.sent(p.WriteWindowUpdate(0, windowMax-windowInitial))
				p.sent(p.SetWriteDeadline(time.Now().Add(3 * time.Second)))
				most := 0
				for i := range times[name] {
					if err := send(p, i); err != nil {
						break
					}
					if c := c.Load(); c != nil && i%10 == 0 {
						c.mu.Lock()
						most = max(most, len(c.mu.buf))
						c.mu.Unlock()
					}
					if most > 4*bufferMax {
						break
					}
				}
				if most > 4*bufferMax {
					t.Errorf("%d bytes wait for the client", most)
				}
			})
		})
	}
}
