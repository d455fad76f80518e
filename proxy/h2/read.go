package h2

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// greeted reads the preface and the first frame, which has to be SETTINGS.
func (c *Conn) greeted() error {
	var preface [len(http2.ClientPreface)]byte
	c.net.ReadUntil(time.Now().Add(prefaceTimeout))
	if _, err := io.ReadFull(&reader{c}, preface[:]); err != nil {
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
			return nil
		}
		return c.answer(func(b []byte) []byte {
			return append(appendHead(b, 8, http2.FramePing, http2.FlagPingAck, 0), f.Data[:]...)
		})
	case *http2.RSTStreamFrame:
		return c.canceled(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // GOAWAY, PRIORITY, unknown ones
}

// answer answers a client's frame about the connection. A client that does not read answers is cut.
func (c *Conn) answer(add func(b []byte) []byte) error {
	c.mu.Lock()
	b := c.bufLocked()
	before := len(b)
	c.mu.buf = add(b)
	c.mu.control += len(c.mu.buf) - before
	flood := c.mu.control > controlMax
	c.mu.Unlock()
	if flood {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.flushSoon()
	return nil
}

// flushSoon writes the buffer without waiting for the client.
func (c *Conn) flushSoon() {
	c.mu.Lock()
	if c.mu.writing {
		c.mu.Unlock()
		return
	}
	c.mu.writing = true
	c.write(false)
}

func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > settingsMax { // each may concern all streams
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.mu.Lock()
	err := f.ForeachSetting(c.setLocked)
	c.mu.changed.Broadcast()
	enqueue := c.wakeLocked()
	c.mu.Unlock()
	if enqueue {
		c.server.pump.add(c)
	}
	if err != nil {
		return err
	}
	return c.answer(func(b []byte) []byte { return appendHead(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0) })
}

func (c *Conn) setLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.mu.encoder.SetMaxDynamicTableSizeLimit(s.Val)
		c.mu.encoder.SetMaxDynamicTableSize(min(s.Val, hpackTable))
	case http2.SettingInitialWindowSize:
		more := int64(s.Val) - c.mu.initial
		c.mu.initial = int64(s.Val)
		for _, st := range c.mu.streams {
			if st.window += more; st.window > windowMax {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
	case http2.SettingMaxFrameSize:
		c.mu.frameMax = int(min(s.Val, bufferMax))
	}
	return nil
}

func (c *Conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	enqueue, err := c.widenLocked(f)
	c.mu.changed.Broadcast()
	c.mu.Unlock()
	if enqueue {
		c.server.pump.add(c)
	}
	return err
}

func (c *Conn) widenLocked(f *http2.WindowUpdateFrame) (enqueue bool, err error) {
	if f.StreamID == 0 {
		if c.mu.window += int64(f.Increment); c.mu.window > windowMax {
			return false, http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return c.wakeLocked(), nil
	}
	s := c.mu.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.mu.last {
			err = http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return false, err
	}
	if s.window += int64(f.Increment); s.window > windowMax {
		return false, http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	return len(s.stuck) > 0 && s.wakeLocked(), nil
}

// wakeLocked wakes the streams that wait for a window.
func (c *Conn) wakeLocked() (enqueue bool) {
	if c.mu.stuck == 0 {
		return false
	}
	for _, s := range c.mu.streams {
		enqueue = len(s.stuck) > 0 && s.wakeLocked() || enqueue
	}
	return enqueue
}

func (c *Conn) canceled(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.mu.last {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	s.endLocked(http2.StreamError{StreamID: s.id, Code: f.ErrCode})
	return nil
}

// reset resets a stream for what its client did.
func (c *Conn) reset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	if s := c.mu.streams[id]; s != nil {
		s.endLocked(http2.StreamError{StreamID: id, Code: code})
	}
	c.appendResetLocked(id, code)
	c.mu.control += frameHead + 4
	c.floodLocked()
	c.mu.Unlock()
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
	c.mu.Unlock()
	if over || s.body == nil || s.body.ended() {
		if f.StreamID > c.lastStream() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.giveBack(nil, size)
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if padding := size - int64(len(f.Data())); padding > 0 {
		c.giveBack(s, padding)
	}
	return s.body.add(f.Data(), f.StreamEnded(), size)
}

// giveBack returns what was received to the windows.
func (c *Conn) giveBack(s *stream, n int64) {
	if n == 0 {
		return
	}
	c.received.Add(n)
	c.mu.Lock()
	c.mu.owed += n
	given := c.giveLocked(0, &c.mu.owed)
	if s != nil {
		s.owed += n
		given = c.giveLocked(s.id, &s.owed) || given
	}
	c.floodLocked()
	c.mu.Unlock()
	if given {
		c.flushSoon()
	}
}

// giveLocked gives a window back if that is worth a frame.
func (c *Conn) giveLocked(id uint32, owed *int64) bool {
	const least = 4 << 10
	if *owed < least {
		return false
	}
	c.mu.buf = appendWindowUpdate(c.bufLocked(), id, *owed)
	c.mu.control += frameHead + 4
	*owed = 0
	return true
}

// floodLocked cuts a client that does not read answers.
func (c *Conn) floodLocked() {
	if c.mu.control > controlMax {
		c.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

// headers begins a stream, or ends one by trailers.
func (c *Conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	old, last, busy := c.mu.streams[id], c.mu.last, max(len(c.mu.streams), c.mu.handlers)
	refusing := c.mu.refusing
	c.mu.last = max(c.mu.last, id)
	c.mu.Unlock()
	switch {
	case old != nil:
		if old.body == nil || old.body.ended() || !f.StreamEnded() || len(f.PseudoFields()) > 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return old.body.add(nil, true, 0)
	case id <= last:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	switch {
	case f.HasPriority() && f.Priority.StreamDep == id:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case refusing:
		return nil
	case busy >= streamsMax:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	case f.Truncated:
		return c.tooLong(id)
	}
	req, err := c.request(f)
	if err != nil {
		return err
	}
	c.begin(id, req, f.StreamEnded())
	return nil
}

// request reads a request's header.
func (c *Conn) request(f *http2.MetaHeadersFrame) (*exchange.Request, error) {
	wrong := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	req := &exchange.Request{
		Method: f.PseudoValue("method"), Target: f.PseudoValue("path"), Host: f.PseudoValue("authority"),
		Header: make(http.Header, len(f.Fields)), Conn: c.net, TLS: c.net.TLSState,
	}
	if req.Method == "" || req.Target == "" || f.PseudoValue("scheme") == "" || req.Method == http.MethodConnect || req.Target[0] != '/' && (req.Target != "*" || req.Method != http.MethodOptions) || f.PseudoValue("protocol") != "" {
		return nil, wrong
	}
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return nil, wrong
		case "te":
			if field.Value != "trailers" {
				return nil, wrong
			}
		}
		add(req.Header, field)
	}
	if req.Host == "" {
		req.Host = req.Header.Get("Host")
	}
	req.Header.Del("Host")
	req.SplitTarget()
	return req, nil
}

func add(h http.Header, f hpack.HeaderField) {
	name := http.CanonicalHeaderKey(f.Name)
	if name == "Cookie" && len(h[name]) > 0 {
		h[name][0] = strings.Join([]string{h[name][0], f.Value}, "; ")
		return
	}
	h[name] = append(h[name], f.Value)
}

func (c *Conn) lastStream() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.last
}

// tooLong answers a request whose header is longer than is accepted.
func (c *Conn) tooLong(id uint32) error {
	c.begin(id, nil, true)
	return nil
}
