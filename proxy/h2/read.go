package h2

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"time"

	"golang.org/x/net/http2"
)

// greeted reads the preface and the first frame, which must be SETTINGS.
func (c *Conn) greeted() error {
	var preface [len(http2.ClientPreface)]byte
	c.net.ReadUntil(time.Now().Add(prefaceTimeout))
	if _, err := io.ReadFull(c.reader, preface[:]); err != nil {
		return err
	}
	if !bytes.Equal(preface[:], []byte(http2.ClientPreface)) {
		return errors.New("no HTTP/2 preface")
	}
	c.net.ReadUntil(time.Now().Add(settingsTimeout))
	f, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	c.net.ReadUntil(time.Time{})
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return c.settings(settings)
}

// frame handles one frame. The error may be a StreamError.
func (c *Conn) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if f.IsAck() {
			if f.Data == drainPing {
				c.drained()
			}
			return nil
		}
		return c.answer(func(b []byte) []byte { return appendPing(b, http2.FlagPingAck, f.Data) })
	case *http2.RSTStreamFrame:
		return c.canceled(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // GOAWAY, PRIORITY, unknown frames
}

// answer responds to a client's control frame. A client that does not read the responses is
// disconnected.
func (c *Conn) answer(add func(b []byte) []byte) error {
	c.mu.Lock()
	err := c.answerLocked(add)
	c.unlock()
	c.flushSoon()
	return err
}

func (c *Conn) answerLocked(add func(b []byte) []byte) error {
	b := c.bufLocked()
	before := len(b)
	c.mu.buf = add(b)
	if c.mu.control += len(c.mu.buf) - before; c.floodsLocked() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > settingsMax { // each setting may affect all streams
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.mu.Lock()
	before := c.mu.initial
	err := f.ForeachSetting(c.setLocked)
	if err == nil { // the acknowledgement precedes frames with the new settings
		err = c.answerLocked(appendSettingsAck)
	}
	more := c.mu.initial - before
	if more != 0 && err == nil {
		for _, st := range c.mu.streams {
			if st.window += more; st.window > windowMax {
				err = http2.ConnectionError(http2.ErrCodeFlowControl)
			}
			st.fedLocked()
		}
	}
	c.unlock()
	c.flushSoon()
	if more != 0 && err == nil {
		err = c.waste()
	}
	return err
}

func (c *Conn) setLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.mu.encoder.Resize(s.Val)
	case http2.SettingInitialWindowSize:
		c.mu.initial = int64(s.Val)
	case http2.SettingMaxFrameSize:
		c.mu.frameMax = int(min(s.Val, bufferMax))
	}
	return nil
}

func (c *Conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.unlock() // wakes a stream that waits for the connection's window
	if f.StreamID == 0 {
		if c.mu.window += int64(f.Increment); c.mu.window > windowMax {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.mu.widest = max(c.mu.widest, c.mu.window)
		return nil
	}
	s := c.mu.streams[f.StreamID]
	if s == nil {
		return c.closedLocked(f.StreamID)
	}
	if s.window += int64(f.Increment); s.window > windowMax {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	s.fedLocked()
	return nil
}

// closedLocked checks a frame for a stream that is not open. It returns nil if the stream was open
// earlier.
func (c *Conn) closedLocked(id uint32) error {
	if id > c.mu.last {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *Conn) canceled(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	err := c.closedLocked(f.StreamID)
	if s := c.mu.streams[f.StreamID]; s != nil {
		s.endLocked(http2.StreamError{StreamID: s.id, Code: f.ErrCode})
	}
	c.unlock()
	c.flushSoon() // there may be a WINDOW_UPDATE for the rest of an upload
	return cmp.Or(err, c.waste())
}

// reset ends a stream with RST_STREAM.
func (c *Conn) reset(id uint32, code http2.ErrCode) { c.resetFor(id, code, nil) }

// resetFor is reset with a reason that the stream's watch counts.
func (c *Conn) resetFor(id uint32, code http2.ErrCode, reason error) {
	c.mu.Lock()
	c.mu.last = max(c.mu.last, id) // a malformed header also begins a stream
	if s := c.mu.streams[id]; s != nil {
		s.endLocked(errors.Join(http2.StreamError{StreamID: id, Code: code}, reason))
	}
	c.mu.buf = appendReset(c.bufLocked(), id, code)
	c.mu.control += resetSize
	c.floodLocked()
	c.unlock()
	c.flushSoon()
}

func (c *Conn) data(f *http2.DataFrame) error {
	size := int64(f.Length)
	if c.received.Add(-size) < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.mu.Lock()
	s := c.mu.streams[f.StreamID]
	over := s == nil || s.err != nil
	err := c.closedLocked(f.StreamID)
	c.unlock()
	if over || s.body == nil || s.body.Ended() {
		if err != nil {
			return err
		}
		c.giveBack(nil, size)
		c.reset(f.StreamID, http2.ErrCodeStreamClosed) // no waste: it may be the rest of an upload
		return nil
	}
	unwanted, err := s.body.Add(f.Data(), f.StreamEnded(), size)
	c.giveBack(nil, unwanted)
	c.giveBack(s, size-int64(len(f.Data()))) // padding
	return err
}

// giveBack returns received bytes to the window of the connection, and to the window of s unless s
// is nil.
func (c *Conn) giveBack(s *stream, n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	given := c.giveBackLocked(s, n)
	c.floodLocked()
	c.unlock()
	if given {
		c.flushSoon()
	}
}

// giveBackLocked does the same as giveBack, and reports whether it appended a frame.
func (c *Conn) giveBackLocked(s *stream, n int64) (given bool) {
	c.received.Add(n)
	c.mu.owed += n
	given = c.giveLocked(0, &c.mu.owed)
	if s != nil && s.err == nil && !s.done {
		s.owed += n
		given = c.giveLocked(s.id, &s.owed) || given
	}
	return given
}

// giveLocked appends a WINDOW_UPDATE if there are enough owed bytes for a frame.
func (c *Conn) giveLocked(id uint32, owed *int64) bool {
	const least = 4 << 10
	if *owed < least {
		return false
	}
	c.mu.buf = appendWindowUpdate(c.bufLocked(), id, *owed)
	c.mu.control += resetSize
	*owed = 0
	return true
}

// floodLocked disconnects a client that does not read control frames.
func (c *Conn) floodLocked() {
	if c.floodsLocked() {
		c.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

func (c *Conn) floodsLocked() bool {
	return c.mu.control > controlMax || c.mu.control > controlUnknown && !c.net.Known()
}

// headers begins a stream. Trailers end a stream.
func (c *Conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	old, last, busy := c.mu.streams[id], c.mu.last, len(c.mu.streams)-c.mu.done
	refusing := c.mu.refusing
	c.mu.last = max(c.mu.last, id)
	if old != nil && old.done {
		old = nil // the response has ended, and only the handler still runs
	}
	c.unlock()
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
		return c.waste()
	case busy >= streamsMax:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	case f.Truncated: // the header is too long
		c.begin(id, nil, f.StreamEnded())
		return nil
	}
	req, err := readRequest(f)
	if err != nil {
		return err
	}
	if f.StreamEnded() && contentLength(req.Header) > 0 {
		return broken
	}
	req.Conn, req.TLS = c.net, c.net.TLSState
	c.begin(id, req, f.StreamEnded())
	return nil
}
