package h2

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// machine runs operations that fuzzing has chosen, and records the expected responses.
type machine struct {
	*script
	sizes map[uint64]int // of events by resourceVersion
	table uint32         // size of the header table
	calls []*expected
}

// expected is a call and its expected response.
type expected struct {
	*call
	answer   string // for a watch, events has the response
	complete bool   // the response is known: it does not depend on an unfinished upload
	watch    bool
	from     uint64 // the resourceVersion after which the watch begins
	cut      bool   // the cache has dropped events that the watch may need
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

// run runs a program. A client without a socket of its own is one whose watches wait for it.
func run(t *testing.T, socket bool, window uint32, program []byte) {
	t.Helper()
	const windowMost = 1 << 24
	hour := within(time.Hour)
	hour.plain = !socket
	hour.settings = windows(window % windowMost)
	m := &machine{script: hour.open(t, nil), sizes: map[uint64]int{}, table: tableSize}
	defer func() {
		m.close()
		<-m.served
		m.cut()
		m.drain()
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
	word := func(format string, args ...any) { m.words(fmt.Sprintf(format, args...)) }
	switch op {
	case opGet, opWatch, opUpload:
		word([]string{"GET/%d.", "WATCH/%d.", "ECHO/%d"}[op], n)
		s := &expected{from: m.rv, watch: op == opWatch}
		m.do(func() { s.call = m.mu.calls[m.mu.last] })
		if s.complete = op == opGet; s.complete {
			s.answer = pattern(n)
		}
		m.calls = append(m.calls, s)
		return
	case opConnWindow:
		word("win:%d", n+1)
	case opSettings: // the decoder accepts only one update in a block, but a rise would cause two
		m.table = min(m.table, uint32(n))
		word("set:window=%d,frame=%d,table=%d", n, frameMax+which, m.table)
	case opPing:
		word("ping")
	case opRead:
		if n == 0 {
			n = -1
		}
		word("read:%d", n)
	case opEvent:
		word("event:%d", n)
		m.sizes[m.rv] = n
	case opCut:
		m.reset()
	}
	if len(m.calls) == 0 {
		return
	}
	s := m.calls[which%len(m.calls)]
	var over, uploaded bool
	m.do(func() { over, uploaded = s.over(), s.uploaded })
	switch {
	case over:
	case op == opWindow:
		word("win@%d:%d", s.id, n+1)
	case op == opReset:
		m.do(func() { m.cancelLocked(s.call) })
	case (op == opData || op == opEnd) && !uploaded:
		m.do(func() { m.uploadLocked(s, pattern(n), op == opEnd, n%256) })
	}
}

func (m *machine) uploadLocked(s *expected, text string, end bool, pad int) {
	sent := m.dataLocked(s.call, []byte(text), end, pad)
	s.answer += text[:sent]
	s.complete = s.uploaded
}

// reset makes the cache start again, which ends all watches.
func (m *machine) reset() {
	for _, s := range m.calls {
		s.cut = true
	}
	m.rv++
	m.cache.Writer().Reset(nil, m.rv)
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
			least = leastMost
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
		return s.cut || s.from+uint64(strings.Count(string(s.body), "\n")) < m.rv
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
	wait := func(done func(s *expected) bool) {
		if err := m.await(func() bool {
			return !slices.ContainsFunc(m.calls, func(s *expected) bool { return !done(s) })
		}); err != nil {
			m.t.Fatal(err)
		}
	}
	m.play("read:-1 win:268435456")
	m.do(func() {
		for _, s := range m.calls {
			if !s.over() {
				m.widenLocked(s.call, 1<<28)
			}
		}
	})
	wait(func(s *expected) bool {
		if !s.over() && !s.uploaded {
			m.uploadLocked(s, "", true, 0)
		}
		return s.over() || s.uploaded
	})
	wait(func(s *expected) bool { return !m.missing(s) })
	m.reset()
	wait(func(s *expected) bool { return s.over() })
	m.do(func() { m.checkLocked(true) })
}

// pattern returns a text of n bytes without repetitions.
func pattern(n int) string {
	b := make([]byte, 0, n+20)
	for i := int64(0); len(b) < n; i++ {
		b = append(strconv.AppendInt(b, i, 10), ' ')
	}
	return string(b[:n])
}
