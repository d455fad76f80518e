package h2

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/conn"
)

// reader reads a client's frames, in the goroutine of its connection, and checks that the client
// keeps to the protocol and does not abuse it.
type reader struct {
	c       *Conn // begins streams
	net     *conn.Conn
	w       *writer
	streams *streams
	intake  *intake
	frames  *conn.FrameReader
	framer  *http2.Framer // reads frames
	wasted  int           // what waste has counted
	began   time.Time
	heard   atomic.Int64 // when the last frame was received, in nanoseconds since began
}

// newReader needs the other parts of c. Header blocks have up to headerMax bytes.
func newReader(c *Conn, headerMax int) *reader {
	r := &reader{
		c:       c,
		net:     c.net,
		w:       c.writer,
		streams: c.streams,
		intake:  c.intake,
		frames:  &conn.FrameReader{Conn: c.net, Free: frameMax},
		began:   time.Now(),
	}
	r.framer = http2.NewFramer(nil, r.frames)
	r.framer.SetMaxReadFrameSize(frameMax)
	r.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	r.framer.MaxHeaderListSize = uint32(headerMax) //nolint:gosec // a small number
	r.framer.SetReuseFrames()
	return r
}

func (r *reader) serve() error {
	defer r.frames.FrameEnds()
	if err := r.greeted(); err != nil {
		return err
	}
	for {
		if err := r.take(r.framer.ReadFrame()); err != nil {
			return err
		}
	}
}

// greeted reads the preface and the first frame, which must be SETTINGS.
func (r *reader) greeted() error {
	var preface [len(http2.ClientPreface)]byte
	r.net.ReadUntil(time.Now().Add(prefaceTimeout))
	if _, err := io.ReadFull(r.frames, preface[:]); err != nil {
		return err
	}
	if !bytes.Equal(preface[:], []byte(http2.ClientPreface)) {
		return errors.New("no HTTP/2 preface")
	}
	r.net.ReadUntil(time.Now().Add(settingsTimeout))
	f, err := r.framer.ReadFrame()
	if err != nil {
		return err
	}
	r.net.ReadUntil(time.Time{})
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return r.settings(settings)
}

func (r *reader) take(f http2.Frame, err error) error {
	r.frames.FrameEnds()
	r.heard.Store(int64(time.Since(r.began)))
	if err == nil {
		err = r.frame(f)
	}
	switch {
	case errors.Is(err, http2.ErrFrameTooLarge):
		err = http2.ConnectionError(http2.ErrCodeFrameSize)
	case errors.Is(err, conn.ErrHeads): // the rest of a header block cannot be left out
		err = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if broken, ok := errors.AsType[http2.StreamError](err); ok {
		r.streams.reset(broken.StreamID, broken.Code, nil)
		return r.waste()
	}
	return err
}

// waste counts a stream that is broken, ignored or canceled. A header block of some bytes may refer
// to 64 KiB of earlier fields (HPACK), so an unknown client is disconnected beyond wastedMax. A
// change of all windows counts, too: it may wake all streams.
func (r *reader) waste() error {
	if r.wasted++; r.wasted > wastedMax && !r.net.Account.Known() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// frame handles one frame. The error may be a StreamError.
func (r *reader) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return r.headers(f)
	case *http2.DataFrame:
		return r.data(f)
	case *http2.WindowUpdateFrame:
		return r.windowUpdate(f)
	case *http2.SettingsFrame:
		return r.settings(f)
	case *http2.PingFrame:
		return r.ping(f)
	case *http2.RSTStreamFrame:
		return r.canceled(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // GOAWAY, PRIORITY, unknown frames
}

func (r *reader) ping(f *http2.PingFrame) error {
	if f.IsAck() {
		if f.Data == drainPing {
			r.streams.drained()
		}
		return nil
	}
	r.w.mu.Lock()
	err := r.w.answerControlLocked(appendPing(r.w.bufLocked(), http2.FlagPingAck, f.Data))
	r.w.flushAndUnlock(false)
	return err
}

func (r *reader) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > settingsMax { // each setting may affect all streams
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	r.w.mu.Lock()
	peer := &r.w.mu.peer
	before := peer.initial
	err := f.ForeachSetting(peer.set)
	if err == nil { // the acknowledgement precedes frames with the new settings
		ack := appendHead(r.w.bufLocked(), 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
		err = r.w.answerControlLocked(ack)
	}
	more := peer.initial - before
	if more != 0 && err == nil {
		err = r.streams.widenLocked(more)
	}
	r.w.flushAndUnlock(false)
	if more != 0 && err == nil {
		err = r.waste()
	}
	return err
}

func (r *reader) windowUpdate(f *http2.WindowUpdateFrame) error {
	r.w.mu.Lock()
	defer r.w.unlock() // wakes a stream that waits for the connection's window
	if f.StreamID == 0 {
		return r.w.mu.peer.widen(int64(f.Increment))
	}
	s := r.streams.open[f.StreamID]
	if s == nil {
		return r.streams.closedLocked(f.StreamID)
	}
	if s.out.window += int64(f.Increment); s.out.window > windowMax {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	s.out.fedLocked()
	return nil
}

func (r *reader) canceled(f *http2.RSTStreamFrame) error {
	r.w.mu.Lock()
	err := r.streams.closedLocked(f.StreamID)
	if s := r.streams.open[f.StreamID]; s != nil {
		s.endLocked(http2.StreamError{StreamID: s.id, Code: f.ErrCode})
	}
	r.w.flushAndUnlock(false) // there may be a WINDOW_UPDATE for the rest of an upload
	return cmp.Or(err, r.waste())
}

func (r *reader) data(f *http2.DataFrame) error {
	size := int64(f.Length)
	r.w.mu.Lock()
	if r.intake.left -= size; r.intake.left < 0 {
		r.w.unlock()
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s := r.streams.open[f.StreamID]
	over := s == nil || s.err != nil
	err := r.streams.closedLocked(f.StreamID)
	r.w.unlock()
	if over || s.body == nil || s.body.Ended() {
		if err != nil {
			return err
		}
		r.intake.giveBack(nil, size)
		// This is no waste: it may be the rest of an upload.
		r.streams.reset(f.StreamID, http2.ErrCodeStreamClosed, nil)
		return nil
	}
	unwanted, err := s.body.Add(f.Data(), f.StreamEnded(), size)
	r.intake.giveBack(nil, unwanted)
	r.intake.giveBack(s, size-int64(len(f.Data()))) // padding
	return err
}

// headers begins a stream. Trailers end a stream.
func (r *reader) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r.w.mu.Lock()
	old, last, full := r.streams.open[id], r.streams.last, r.streams.fullLocked()
	refusing := r.streams.refusing
	r.streams.last = max(last, id)
	if old != nil && old.done {
		old = nil // the response has ended, and only the handler still runs
	}
	r.w.unlock()
	trailers := f.StreamEnded() && len(f.PseudoFields()) == 0
	broken := http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	switch {
	case old != nil && (old.body == nil || old.body.Ended()):
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case old != nil && !trailers:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case old != nil:
		_, err := old.body.Add(nil, true, 0)
		return err
	case id <= last && trailers: // the trailers were on their way when the stream was reset
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case id <= last:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	case f.HasPriority() && f.Priority.StreamDep == id:
		return broken
	case refusing:
		return r.waste()
	case full:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	case f.Truncated: // the header is too long
		r.c.begin(id, nil, f.StreamEnded())
		return nil
	}
	req, err := readRequest(f)
	if err != nil {
		return err
	}
	if f.StreamEnded() && contentLength(req.Header) > 0 {
		return broken
	}
	req.Conn, req.TLS = r.net, r.net.TLSState
	r.c.begin(id, req, f.StreamEnded())
	return nil
}
