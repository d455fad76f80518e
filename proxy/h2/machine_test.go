package h2

import (
	"context"
	"encoding/binary"
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

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/h2/frame"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// machine runs operations that fuzzing has chosen, and records the expected responses.
type machine struct {
	*client
	t     *testing.T
	cache *watchcache.Cache
	sizes map[int]int // of events by resourceVersion
	rv    int
	table uint32 // size of the header table
	calls []*expected
}

// expected is a call and its expected response.
type expected struct {
	*call
	answer   string // for a watch, events has the response
	complete bool   // the response is known: it does not depend on an unfinished upload
	watch    bool
	from     int  // the resourceVersion after which the watch begins
	cut      bool // the cache has dropped events that the watch may need
}

const ( // operations
	opGet = iota
	opWatch
	opUpload
	opData
	opEnd
	opWindow
	opConnWindow
	opSettings
	opReset
	opPing
	opRead
	opEvent
	opCut
	ops
)

func run(t *testing.T, connect func(*Server) (net.Conn, chan struct{}), window uint32, program []byte) {
	m := &machine{t: t, rv: 1, sizes: map[int]int{}, table: frame.TableSize}
	m.cache, _ = cachetest.Roomy(t)
	watch := watching(t, m.cache, 3*time.Hour, "")
	o := options()
	o.Stall, o.Limits.Write, o.Limits.Read = time.Hour, time.Hour, time.Hour
	s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
		switch req.Method {
		case http.MethodGet:
			return watch(ctx, req)
		case http.MethodPost:
			got, _ := io.ReadAll(req.Body)
			return says(string(got))
		}
		n, _ := strconv.Atoi(req.Path[1:])
		return says(pattern(n))
	}, o)
	nc, served := connect(s)
	nc.SetDeadline(time.Now().Add(2 * time.Hour))
	const windowMost = 1 << 24
	m.client = newClient(nc, func(http2.Frame) {}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window % windowMost})
	defer func() {
		m.close()
		<-served
	}()
	for ; len(program) >= 4; program = program[4:] {
		m.step(program[0]%ops, int(program[1]), int(binary.BigEndian.Uint16(program[2:])))
		synctest.Wait()
		m.do(func() { m.checkLocked(true) })
		time.Sleep(3 * overdueAfter)
		synctest.Wait()
		m.do(func() { m.checkLocked(false) })
	}
	m.finish()
}

func (m *machine) step(op byte, which, n int) {
	if op == opEvent {
		m.rv++
		m.sizes[m.rv] = n
		cachetest.Apply(m.t, m.cache, cachetest.Sized(m.t, uint64(m.rv), n))
		return
	}
	if op == opCut {
		m.cut()
		return
	}
	m.do(func() {
		if op <= opUpload {
			m.openLocked(op, n)
			return
		}
		if s := m.pick(which); s != nil && !s.over() {
			m.aboutLocked(s, op, n)
		}
		m.elseLocked(op, which, n)
	})
}

func (m *machine) pick(which int) *expected {
	if len(m.calls) == 0 {
		return nil
	}
	return m.calls[which%len(m.calls)]
}

func (m *machine) openLocked(op byte, n int) {
	s := &expected{from: m.rv, watch: op == opWatch, complete: op == opGet}
	method := map[byte]string{opGet: "PUT", opWatch: "GET", opUpload: "POST"}[op]
	if s.complete {
		s.answer = pattern(n)
	}
	s.call = m.beginLocked(op != opUpload, frameMax, 0, hpack.HeaderField{Name: ":method", Value: method},
		hpack.HeaderField{Name: ":scheme", Value: "http"}, hpack.HeaderField{Name: ":path", Value: "/" + strconv.Itoa(n)})
	m.calls = append(m.calls, s)
}

// aboutLocked runs operations on one stream.
func (m *machine) aboutLocked(s *expected, op byte, n int) {
	switch op {
	case opData, opEnd:
		if !s.uploaded {
			m.uploadLocked(s, pattern(n), op == opEnd, n%256)
		}
	case opWindow:
		m.widenLocked(s.call, int64(n)+1)
	case opReset:
		m.cancelLocked(s.call)
	}
}

func (m *machine) uploadLocked(s *expected, text string, end bool, pad int) {
	sent := m.dataLocked(s.call, []byte(text), end, pad)
	s.answer += text[:sent]
	s.complete = s.uploaded
}

func (m *machine) elseLocked(op byte, which, n int) {
	switch op {
	case opConnWindow:
		m.widenLocked(nil, int64(n)+1)
	case opSettings:
		// The decoder accepts only one update in a block, but a rise would cause two.
		m.table = min(m.table, uint32(n))
		m.setLocked(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(frameMax + which)},
			http2.Setting{ID: http2.SettingHeaderTableSize, Val: m.table})
	case opPing:
		m.pingLocked(func() {})
	case opRead:
		if m.mu.budget = n; n == 0 {
			m.mu.budget = -1
		}
	}
}

// cut makes the cache start again, which ends all watches.
func (m *machine) cut() {
	for _, s := range m.calls {
		s.cut = true
	}
	m.rv++
	m.cache.Reset(nil, uint64(m.rv))
}

// checkLocked fails if bytes are wrong, or missing although the windows allow them. A window that is
// not worth a frame yet may be left. It must be called when all is quiet.
func (m *machine) checkLocked(worth bool) {
	if m.mu.broken != nil || m.mu.err != nil {
		m.t.Fatal(m.mu.broken, m.mu.err)
	}
	for _, s := range m.calls {
		m.contentLocked(s)
		window := min(m.mu.window, m.mostLocked(initialWindow)+s.given-s.got)
		least := int64(1)
		if worth {
			least = frame.LeastMost
		}
		if m.mu.budget < 0 && window >= least && m.missing(s) {
			m.t.Fatalf("stream %d has a window of %d and gets nothing: %d of %d bytes, ended %t, watch %t",
				s.id, window, len(s.body), len(s.answer), s.ended, s.watch)
		}
	}
}

// missing reports whether more of a response should have arrived.
func (m *machine) missing(s *expected) bool {
	switch {
	case s.over():
		return false
	case s.watch:
		return s.cut || s.from+strings.Count(string(s.body), "\n") < m.rv
	}
	return s.complete
}

// contentLocked fails if a stream has wrong bytes.
func (m *machine) contentLocked(s *expected) {
	if s.reset != nil {
		m.t.Fatalf("stream %d was reset: %v", s.id, *s.reset)
	}
	if !s.watch {
		if !strings.HasPrefix(s.answer, string(s.body)) || s.ended && len(s.body) != len(s.answer) {
			m.t.Fatalf("stream %d has %d bytes of %d, or other ones", s.id, len(s.body), len(s.answer))
		}
		return
	}
	lines := strings.SplitAfter(string(s.body), "\n")
	rest, next := lines[len(lines)-1], s.from+1
	for _, line := range lines[:len(lines)-1] {
		if s.cut && strings.HasPrefix(line, `{"type":"ERROR"`) {
			continue
		}
		want := fmt.Sprintf(`"resourceVersion":"%d"},"data":{"p":"%s"}}}`+"\n", next, strings.Repeat("x", m.sizes[next]))
		if !strings.HasSuffix(line, want) {
			m.t.Fatalf("stream %d has %.300q instead of %.300q", s.id, line, want)
		}
		next++
	}
	if s.ended && rest != "" {
		m.t.Fatalf("stream %d ends within an event: %.300q", s.id, rest)
	}
}

// finish opens all windows. Then all responses arrive and end.
func (m *machine) finish() {
	const wide = 1 << 28
	m.do(func() {
		m.mu.budget = -1
		m.widenLocked(nil, wide)
		for _, s := range m.calls {
			if !s.over() {
				m.widenLocked(s.call, wide)
			}
		}
	})
	for _, s := range m.calls {
		m.wait("upload", func() bool {
			if !s.over() && !s.uploaded {
				m.uploadLocked(s, "", true, 0)
			}
			return s.over() || s.uploaded
		})
	}
	m.wait("answers", func() bool {
		return !slices.ContainsFunc(m.calls, m.missing)
	})
	m.cut()
	m.wait("ends", func() bool {
		return !slices.ContainsFunc(m.calls, func(s *expected) bool { return !s.over() })
	})
	m.do(func() { m.checkLocked(true) })
}

func (m *machine) wait(what string, done func() bool) {
	if err := m.await(done); err != nil {
		m.t.Fatalf("no %s: %v", what, err)
	}
}

// pattern returns a text of n bytes without repetitions.
func pattern(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()[:n]
}
