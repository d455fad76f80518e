package h2

import (
	"errors"
	"net/http"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
)

// streams is the table of a connection's streams. It also keeps new ones off (GOAWAY).
type streams struct {
	net *conn.Conn
	w   *writer // its lock guards the fields below

	open     map[uint32]*stream // with running handlers or open watches
	last     uint32             // the last stream that the client began
	taken    uint32             // the last stream with a handler
	done     int                // number of streams whose responses have ended
	idle     time.Time          // when the last stream ended
	grace    *time.Timer        // fires when new streams must be ignored; nil before a drain
	refusing bool               // new streams are ignored
	spared   int                // refusals that have not ended the connection of an unknown client
}

func (t *streams) fullLocked() bool { return len(t.open)-t.done >= streamsMax }

// closedLocked checks a frame for a stream that is not open. It must have been open earlier.
func (t *streams) closedLocked(id uint32) error {
	if id > t.last {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (t *streams) widenLocked(more int64) (err error) {
	for _, s := range t.open {
		if s.out.window += more; s.out.window > windowMax {
			err = http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		s.out.fedLocked()
	}
	return err
}

func (t *streams) add(s *stream) bool {
	t.w.mu.Lock()
	defer t.w.unlock()
	if t.refusing { // since headers looked
		return false
	}
	s.out.window = t.w.mu.peer.initial
	t.taken, t.open[s.id] = s.id, s // drained waits for all that it names
	return true
}

// removeLocked removes a stream that has ended. It returns true if none may follow.
func (t *streams) removeLocked(s *stream) (last bool) {
	delete(t.open, s.id)
	if s.done {
		t.done--
	}
	t.idle = time.Now()
	return t.refusing && len(t.open) == 0
}

// reset ends a stream with RST_STREAM. A watch counts the reason, which may be nil.
func (t *streams) reset(id uint32, code http2.ErrCode, reason error) {
	t.w.mu.Lock()
	t.last = max(t.last, id) // a malformed header also begins a stream
	if s := t.open[id]; s != nil {
		s.endLocked(errors.Join(http2.StreamError{StreamID: id, Code: code}, reason))
	}
	if err := t.w.answerControlLocked(appendReset(t.w.bufLocked(), id, code)); err != nil {
		t.w.failLocked(err)
	}
	t.w.flushAndUnlock(false)
}

// drain makes the client use another connection. The first GOAWAY announces the end, and the second
// GOAWAY names the last stream. A PING between them makes a round trip, because streams may be on
// their way. The client may send streams after the last again on another connection.
func (t *streams) drain() {
	t.w.mu.Lock()
	if t.grace == nil && !t.refusing && t.w.mu.err == nil {
		t.w.mu.buf = appendGoaway(t.w.bufLocked(), windowMax, http2.ErrCodeNo)
		t.w.mu.buf = appendPing(t.w.mu.buf, 0, drainPing)
		t.grace = time.AfterFunc(drainGrace, t.drained)
	}
	t.w.flushAndUnlock(false)
}

// drained makes the connection end with its last stream.
func (t *streams) drained() {
	t.w.mu.Lock()
	idle := t.grace != nil && !t.refusing && len(t.open) == 0
	if t.grace != nil {
		t.refuseLocked()
	}
	t.w.flushAndUnlock(false)
	if idle {
		t.net.Interrupt()
	}
}

func (t *streams) refuseLocked() {
	if t.refusing {
		return
	}
	if t.grace != nil {
		t.grace.Stop()
	}
	t.refusing = true
	t.w.mu.buf = appendGoaway(t.w.bufLocked(), t.taken, http2.ErrCodeNo)
}

// refused counts a refusal of an unknown client, and ends the connection with the streams that have
// begun. A 503 or 429 may be no fault of the client, which need not connect again for each.
func (t *streams) refused(status int) {
	t.w.mu.Lock()
	defer t.w.unlock()
	t.spared++
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		t.spared = wastedMax
	}
	if t.spared >= wastedMax {
		t.refuseLocked()
	}
}

// endLocked ends all streams. If the client violated the protocol, GOAWAY has the error code.
func (t *streams) endLocked(err error) {
	for _, s := range t.open { // from now on no stream appends frames
		s.endLocked(errClosed)
	}
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		t.w.mu.buf = appendGoaway(t.w.bufLocked(), t.taken, http2.ErrCode(ce))
	}
}
