package h2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// script is a client that plays lines, and its server. Each line says what the client does, and after
// => what it then reads until all is quiet. The words of the first part:
//
//	GET/9@3.,a=b     HEADERS of stream 3 with a field; a dot ends the request; see answers
//	GET,:path=       without a pseudo field, or with another one
//	data@3:9         DATA of 9 bytes; data@3:9. ends the request
//	data@3:9+255     with padding
//	end@3            trailers
//	rst@3            RST_STREAM
//	win:9 win@3:9    WINDOW_UPDATE
//	set:window=9     SETTINGS
//	ping pong mute   PING, the answer to the oldest PING, no answers from now on, unless told
//	raw:6:0:1:8      a frame of a type (6) with flags (0) of a stream (1) and 8 zero bytes
//	read:9           the client reads 9 bytes and no more, until another read; read:-1 for all
//	wait:9s          time passes
//	preface          the beginning of a connection
//	drain cut        the server begins to drain, or ends all requests
//	event:9          an object of 9 bytes is written to the cache
//	over             the server must have ended the connection
//
// A number before a star repeats words that are joined by a semicolon. Without its number, a request
// takes the next stream, and other words are about the last one. The words of the second part are
// settings, ack, ping, pong, goaway:STREAM:CODE and eof, and for a stream its status, +BYTES, a dot for
// its end, and !CODE for RST_STREAM. A star at the beginning of this part stands for anything.
type script struct {
	*client
	t          *testing.T
	server     *Server
	cache      *watchcache.Cache
	rv         uint64 // of the last object
	drain, cut context.CancelFunc
	served     chan struct{}
	released   chan struct{} // ends STUCK
}

// scene is the beginning of a script.
type scene struct {
	stranger bool
	remote   net.Addr
	unread   int  // number of unread bytes that the connection holds; 0 means unread
	plain    bool // writes to the connection always wait for the client
	bare     bool // the client has not sent the preface and SETTINGS
	settings []http2.Setting
	limits   func(l *exchange.Limits)
	draining bool
}

// play plays lines in a bubble of its own.
func (sc scene) play(t *testing.T, lines string) {
	t.Helper()
	sc.run(t, func(s *script) { s.play(lines) })
}

func (sc scene) run(t *testing.T, do func(s *script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := sc.open(t, nil)
		defer s.end()
		do(s)
	})
}

// open connects a client to a server, or to a new one.
func (sc scene) open(t *testing.T, server *Server) *script {
	t.Helper()
	s := &script{t: t, server: server, rv: 1, released: make(chan struct{}), cut: func() {}, drain: func() {}}
	if server == nil {
		l := limits()
		if sc.limits != nil {
			sc.limits(&l)
		}
		s.cache, _ = cachetest.Roomy(t)
		s.server = newServer(s.answers(watching(t, s.cache, 3*time.Hour)), l)
		s.server.Draining, s.drain = context.WithCancel(context.Background())
		s.server.Serving, s.cut = context.WithCancel(context.Background())
	}
	if sc.draining {
		s.drain()
	}
	theirs, ours := conntest.Pipe(cmp.Or(sc.unread, unread))
	ours.Remote = sc.remote
	var client, accepted net.Conn = theirs, ours
	if sc.plain {
		client, accepted = net.Pipe()
	}
	nc := conn.New(accepted)
	if !sc.stranger {
		nc = known(accepted)
	}
	s.served = serving(s.server, nc)
	if s.client = newClient(client, func(http2.Frame) {}); !sc.bare {
		s.greet(sc.settings...)
	}
	return s
}

// answers answers by the method of a request.
func (s *script) answers(watch handler) handler {
	return func(ctx context.Context, req *exchange.Request) *exchange.Response {
		resp := says("hello")
		resp.Header.Set("Content-Type", "text/plain")
		if n, err := strconv.Atoi(strings.TrimPrefix(req.Path, "/")); err == nil {
			resp.Body = exchange.Bytes(pattern(n))
		}
		switch req.Method {
		case "POST": // is answered when its client cancels
			<-ctx.Done()
		case "PUT": // is answered when all of its body was read
			if _, err := io.ReadAll(req.Body); err != nil {
				resp.Status = http.StatusBadRequest
			}
		case "ECHO":
			body, _ := io.ReadAll(req.Body)
			resp.Body = exchange.Bytes(body)
		case "NAP": // reads its body slowly
			_, err := req.Body.Read(make([]byte, 1))
			time.Sleep(3 * s.server.Limits().Read)
			if _, err2 := io.ReadAll(req.Body); errors.Join(err, err2) != nil {
				resp.Status = http.StatusBadRequest
			}
		case "STUCK": // does not notice that its client leaves
			<-s.released
		case "SLOW":
			time.Sleep(2 * drainGrace)
		case "DENY":
			resp.Status, resp.Last = http.StatusUnauthorized, true
		case "BUSY":
			resp.Status = http.StatusServiceUnavailable
		case "EARLY", "LAST": // are answered before their bodies were read
			resp.Status, resp.Last = http.StatusRequestEntityTooLarge, req.Method == "LAST"
		case "PART":
			_, _ = req.Body.Read(make([]byte, 1))
			resp.Status = http.StatusRequestEntityTooLarge
		case "PANIC":
			panic("a test")
		case "TUNNEL":
			resp.Body = noTunnel{}
		case "QUIET":
			resp.Body = quietStream{}
		case "WATCH":
			return watch(ctx, req)
		}
		return resp
	}
}

// quietStream writes nothing.
type quietStream struct{}

// Run implements exchange.Stream.
func (quietStream) Run(ctx context.Context, _ *exchange.ChunkWriter) { <-ctx.Done() }

// Abandon implements exchange.Stream.
func (quietStream) Abandon() {}

// Reason implements exchange.Stream.
func (quietStream) Reason() string { return "" }

type noTunnel struct{ exchange.Tunnel }

// Abandon implements exchange.Tunnel.
func (noTunnel) Abandon() {}

// play plays lines.
func (s *script) play(lines string) {
	s.t.Helper()
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		does, want, reads := strings.Cut(line, "=>")
		for word := range strings.FieldsSeq(does) {
			s.words(word)
		}
		if !reads {
			continue
		}
		if got, want := s.read(), strings.Join(strings.Fields(want), " "); got != want && (want == "" || want[0] != '*' || !strings.HasSuffix(got, want[1:])) {
			s.t.Fatalf("%s\nthe client reads %s\nwant             %s", strings.TrimSpace(line), got[max(0, len(got)-1000):], want)
		}
	}
}

// words plays words that are joined, or repeated.
func (s *script) words(word string) {
	n, rest, _ := strings.Cut(word, "*")
	if times, err := strconv.Atoi(n); err == nil {
		for range times {
			for one := range strings.SplitSeq(rest, ";") {
				s.words(one)
			}
		}
		return
	}
	s.do(func() { s.wordLocked(word) })
	s.pass(word)
}

// read returns what the client has read since the last call, when all is quiet.
func (s *script) read() string {
	synctest.Wait()
	var all []string
	s.do(func() {
		for _, n := range s.mu.notes {
			all = append(all, n.String())
		}
		if s.mu.notes = nil; s.mu.err != nil && !s.mu.closed {
			all = append(all, "eof")
		}
	})
	return strings.Join(all, " ")
}

// pass does what does not concern frames.
func (s *script) pass(word string) {
	word, arg, _ := strings.Cut(word, ":")
	switch word {
	case "wait":
		d, err := time.ParseDuration(arg)
		if err != nil {
			s.t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(d)
	case "drain":
		s.drain()
	case "cut":
		s.cut()
	case "event":
		s.rv++
		n, _ := strconv.Atoi(arg)
		cachetest.Apply(s.t, s.cache, cachetest.Sized(s.t, s.rv, n))
	case "over":
		synctest.Wait()
		select {
		case <-s.served:
		default:
			s.t.Error("the connection is still served")
		}
	}
}

func (s *script) wordLocked(word string) {
	if word[0] >= 'A' && word[0] <= 'Z' {
		s.requestLocked(word)
		return
	}
	word, end := strings.CutSuffix(word, ".")
	word, arg, _ := strings.Cut(word, ":")
	word, at, _ := strings.Cut(word, "@")
	stream, _ := strconv.Atoi(at)
	id := uint32(stream)
	if at == "" {
		id = s.mu.last
	}
	n, _ := strconv.Atoi(arg)
	switch word {
	case "data":
		length, padding, padded := strings.Cut(arg, "+")
		n, _ := strconv.Atoi(length)
		pad, _ := strconv.Atoi(padding)
		if s.mu.sendWindow -= int64(n); padded {
			s.mu.sendWindow -= int64(pad + 1)
			_ = s.mu.out.WriteDataPadded(id, end, make([]byte, n), make([]byte, pad))
		} else {
			_ = s.mu.out.WriteData(id, end, make([]byte, n))
		}
	case "end":
		s.headersLocked(id, true, frameMax, 0)
	case "rst":
		_ = s.mu.out.WriteRSTStream(id, http2.ErrCodeCancel)
		if c := s.mu.calls[id]; c != nil {
			c.canceled = true
		}
	case "win":
		if at == "" {
			id = 0
		}
		s.widenLocked(s.mu.calls[id], int64(n))
	case "preface":
		s.mu.unsent.WriteString(http2.ClientPreface)
	case "set":
		var all []http2.Setting
		for one := range strings.SplitSeq(arg, ",") {
			name, value, _ := strings.Cut(one, "=")
			n, _ := strconv.ParseUint(value, 10, 32)
			all = append(all, http2.Setting{ID: map[string]http2.SettingID{
				"window": http2.SettingInitialWindowSize, "frame": http2.SettingMaxFrameSize, "table": http2.SettingHeaderTableSize,
			}[name], Val: uint32(n)})
		}
		s.setLocked(all...)
	case "ping":
		s.pingLocked(func() {})
	case "pong":
		s.pongLocked()
	case "mute":
		s.mu.mute = true
	case "read":
		s.mu.budget = n
	case "raw":
		var kind, flags, size int
		if _, err := fmt.Sscanf(arg, "%d:%d:%d:%d", &kind, &flags, &stream, &size); err != nil {
			s.t.Fatal(err)
		}
		if kind == int(http2.FrameSettings) {
			s.mu.settings = append(s.mu.settings, s.mu.settings[0])
		}
		_ = s.mu.out.WriteRawFrame(http2.FrameType(kind), http2.Flags(flags), uint32(stream), make([]byte, size))
	}
}

// requestLocked sends HEADERS. An id of 0 stands for the next one.
func (s *script) requestLocked(word string) {
	word, more, _ := strings.Cut(word, ",")
	word, end := strings.CutSuffix(word, ".")
	word, at, _ := strings.Cut(word, "@")
	method, path, _ := strings.Cut(word, "/")
	fields := []hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "a"}, {Name: ":path", Value: "/" + path},
	}
	for one := range strings.SplitSeq(more, ",") {
		if name, value, ok := strings.Cut(one, "="); ok {
			if length, err := strconv.Atoi(strings.TrimPrefix(value, "x")); err == nil && value[0] == 'x' {
				value = strings.Repeat("x", length)
			}
			if i := slices.IndexFunc(fields, func(f hpack.HeaderField) bool { return f.Name == name && name[0] == ':' }); i >= 0 {
				fields = slices.Delete(fields, i, i+1)
			}
			at := len(fields)
			if name[0] == ':' {
				at = 0
			}
			if value != "" {
				fields = slices.Insert(fields, at, hpack.HeaderField{Name: name, Value: value})
			}
		}
	}
	id, _ := strconv.Atoi(at)
	switch s.mu.calls[uint32(id)] {
	case nil:
		if id == 0 {
			id = int(s.mu.last+1) | 1
		}
		s.beginAtLocked(uint32(id), end, frameMax, 0, fields...)
	default:
		s.headersLocked(uint32(id), end, frameMax, 0, fields...)
	}
}

// end ends the connection. If all requests have ended, the whole window of the connection must be there.
func (s *script) end() {
	s.t.Helper()
	close(s.released)
	synctest.Wait()
	s.do(func() {
		over := true
		for _, c := range s.mu.calls {
			over = over && c.over()
		}
		if s.mu.broken != nil {
			s.t.Error(s.mu.broken)
		}
		if least := int64(windowConn - 4<<10); over && s.mu.err == nil && s.mu.sendWindow < least && !s.t.Failed() {
			s.t.Errorf("%d bytes are left of the window, want %d", s.mu.sendWindow, least)
		}
	})
	s.close()
	<-s.served
	s.cut()
	s.drain()
}
