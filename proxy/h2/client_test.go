package h2

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// client is a peer that counts windows and records the states of its streams. It checks each frame
// of a server against them:
//
//  1. DATA stays within the windows of its stream and of the connection.
//  2. No frame exceeds SETTINGS_MAX_FRAME_SIZE.
//  3. A stream has one final HEADERS, then DATA, then at most one RST_STREAM.
//  4. A stream that the client has reset gets no frame once the server has read the reset.
//
// A setting is in force from its acknowledgement on, and not earlier: until then, a client may rely on
// the old one.
type client struct {
	net     net.Conn
	framer  *http2.Framer // reads
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		changed *sync.Cond
		err     error // why reading ended
		broken  error // the first violation of the rules
		budget  int   // number of bytes that may be read; below 0 for any number
		calls   map[uint32]*call
		last    uint32

		unsent   bytes.Buffer // the writer sends these bytes
		closed   bool
		out      *http2.Framer // to unsent
		block    bytes.Buffer
		encoder  *hpack.Encoder
		window   int64              // number of bytes that the server may send
		settings []map[string]int64 // settings in force, and then those without an acknowledgement
		pings    []func()           // called when the response to a PING arrives
		mute     bool               // the client answers nothing by itself
		asked    [][8]byte          // these pings, oldest first
		notes    []note             // what the client has read

		sendWindow, sendInitial, sendMax int64 // numbers of bytes that the client may send
	}
}

const (
	initialWindow, maxFrame, headerTable = "initial window", "largest frame", "header table"
)

// call is a stream of a client.
type call struct {
	id                     uint32
	given, got, sendWindow int64
	informed               []string // statuses of informational answers
	header                 []hpack.HeaderField
	body                   []byte
	headed, ended          bool
	reset                  *http2.ErrCode // by the server
	canceled, confirmed    bool           // reset by the client; the server has read the reset
	uploaded               bool           // the client has ended its side
}

// over reports whether no more frames follow.
func (s *call) over() bool { return s.ended || s.reset != nil || s.canceled }

// newClient returns a client, which has not sent anything.
func newClient(nc net.Conn, then func(f http2.Frame)) *client {
	c := &client{net: nc}
	c.framer = http2.NewFramer(nil, (*budgeted)(c))
	c.framer.SetMaxReadFrameSize(1 << 24)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	c.framer.MaxHeaderListSize = 16 << 20
	c.mu.changed = sync.NewCond(&c.mu)
	c.mu.calls = map[uint32]*call{}
	c.mu.out = http2.NewFramer(&c.mu.unsent, nil)
	c.mu.out.AllowIllegalWrites = true
	c.mu.encoder = hpack.NewEncoder(&c.mu.block)
	c.mu.budget, c.mu.mute = -1, true // until the preface is sent
	c.mu.window, c.mu.settings = windowInitial, []map[string]int64{{initialWindow: windowInitial, maxFrame: frameMax}}
	c.mu.sendWindow, c.mu.sendInitial, c.mu.sendMax = windowInitial, windowInitial, frameMax
	c.running.Go(c.write)
	c.running.Go(func() { c.read(then) })
	return c
}

// greet sends the preface and SETTINGS.
func (c *client) greet(settings ...http2.Setting) *client {
	c.do(func() {
		c.mu.unsent.WriteString(http2.ClientPreface)
		c.mu.mute = false
		c.setLocked(settings...)
	})
	return c
}

// budgeted reads no more than the client's budget.
type budgeted client

// Read implements io.Reader.
func (b *budgeted) Read(p []byte) (int, error) {
	c := (*client)(b)
	c.mu.Lock()
	for c.mu.budget == 0 {
		c.mu.changed.Wait()
	}
	limited := c.mu.budget > 0
	if limited {
		p = p[:min(len(p), c.mu.budget)]
		c.mu.budget -= len(p)
	}
	c.mu.Unlock()
	n, err := c.net.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if limited && c.mu.budget >= 0 {
		c.mu.budget += len(p) - n
	}
	return n, err
}

// read reads until the connection ends. It calls then after each frame, without the lock.
func (c *client) read(then func(f http2.Frame)) {
	for {
		f, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.mu.err = err
			c.mu.changed.Broadcast()
			c.mu.Unlock()
			return
		}
		if err := c.takeLocked(f); err != nil && c.mu.broken == nil {
			c.mu.broken = err
		}
		c.mu.changed.Broadcast()
		c.mu.Unlock()
		then(f)
	}
}

// write sends pending frames until the connection ends or close is called.
func (c *client) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for c.mu.unsent.Len() == 0 && !c.mu.closed && c.mu.err == nil {
			c.mu.changed.Wait()
		}
		if c.mu.closed || c.mu.err != nil {
			return
		}
		p := bytes.Clone(c.mu.unsent.Bytes())
		c.mu.unsent.Reset()
		c.mu.Unlock()
		_, _ = c.net.Write(p) // the reader detects the end of the connection
		c.mu.Lock()
	}
}

// close ends the connection and both goroutines.
func (c *client) close() {
	c.net.Close()
	c.do(func() { c.mu.closed, c.mu.budget = true, -1 })
	c.running.Wait()
}

// do calls f with the lock held.
func (c *client) do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.mu.changed.Broadcast()
}

// mostLocked returns the value of a setting that is in force.
func (c *client) mostLocked(setting string) int64 { return c.mu.settings[0][setting] }

func (c *client) takeLocked(f http2.Frame) error {
	h := f.Header()
	c.noteLocked(f)
	if int64(h.Length) > c.mostLocked(maxFrame) {
		return fmt.Errorf("%v is larger than the client allows", h)
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.takeSettingsLocked(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			if c.mu.asked = append(c.mu.asked, f.Data); !c.mu.mute {
				c.pongLocked()
			}
			return nil
		}
		if len(c.mu.pings) == 0 {
			return fmt.Errorf("%v answers no ping", h)
		}
		c.mu.pings[0]()
		c.mu.pings = c.mu.pings[1:]
		return nil
	case *http2.GoAwayFrame:
		return nil
	}
	if h.StreamID == 0 {
		if f, ok := f.(*http2.WindowUpdateFrame); ok {
			c.mu.sendWindow += int64(f.Increment)
		}
		return nil
	}
	s := c.mu.calls[h.StreamID]
	if s == nil {
		return fmt.Errorf("%v is for no stream of the client", h)
	}
	if s.confirmed || s.reset != nil && h.Type != http2.FrameRSTStream {
		return fmt.Errorf("%v is for a stream that was reset", h)
	}
	return c.takeStreamLocked(s, f)
}

func (c *client) takeSettingsLocked(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if len(c.mu.settings) < 2 {
			return fmt.Errorf("%v acknowledges nothing", f)
		}
		c.mu.settings = c.mu.settings[1:]
		if n, ok := c.mu.settings[0][headerTable]; ok {
			c.framer.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(uint32(n))
		}
		return nil
	}
	if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
		for _, s := range c.mu.calls {
			s.sendWindow += int64(n) - c.mu.sendInitial
		}
		c.mu.sendInitial = int64(n)
	}
	if n, ok := f.Value(http2.SettingMaxFrameSize); ok {
		c.mu.sendMax = int64(n)
	}
	if c.mu.mute {
		return nil
	}
	return c.mu.out.WriteSettingsAck()
}

func (c *client) takeStreamLocked(s *call, f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		status := f.PseudoValue("status")
		if s.headed {
			return fmt.Errorf("%v follows the header of the answer", f)
		}
		if status[0] == '1' && !f.StreamEnded() {
			s.informed = append(s.informed, status)
			return nil
		}
		s.headed, s.ended, s.header = true, f.StreamEnded(), slices.Clone(f.Fields)
	case *http2.DataFrame:
		if !s.headed || s.ended {
			return fmt.Errorf("%v is not within an answer", f)
		}
		s.ended = f.StreamEnded()
		s.body = append(s.body, f.Data()...)
		s.got += int64(f.Length)
		c.mu.window -= int64(f.Length)
		if f.Length > 0 && (c.mu.window < 0 || s.got > s.given+c.mostLocked(initialWindow)) {
			return fmt.Errorf("%v exceeds a window: %d left on the connection, %d of %d+%d taken",
				f, c.mu.window, s.got, s.given, c.mostLocked(initialWindow))
		}
	case *http2.WindowUpdateFrame:
		s.sendWindow += int64(f.Increment)
	case *http2.RSTStreamFrame:
		if s.reset == nil { // otherwise bytes on their way are also refused
			s.reset = &f.ErrCode
		}
	default:
		return fmt.Errorf("%v is unknown", f)
	}
	return nil
}

func (c *client) setLocked(settings ...http2.Setting) {
	next := maps.Clone(c.mu.settings[len(c.mu.settings)-1])
	for _, s := range settings {
		switch s.ID {
		case http2.SettingInitialWindowSize:
			next[initialWindow] = int64(s.Val)
		case http2.SettingMaxFrameSize:
			next[maxFrame] = int64(s.Val)
		case http2.SettingHeaderTableSize:
			next[headerTable] = int64(s.Val)
		}
	}
	c.mu.settings = append(c.mu.settings, next)
	_ = c.mu.out.WriteSettings(settings...)
}

// beginLocked opens a stream.
func (c *client) beginLocked(end bool, piece, pad int, fields ...hpack.HeaderField) *call {
	return c.beginAtLocked((c.mu.last+1)|1, end, piece, pad, fields...) // the next odd number
}

func (c *client) beginAtLocked(id uint32, end bool, piece, pad int, fields ...hpack.HeaderField) *call {
	s := &call{id: id, sendWindow: c.mu.sendInitial, uploaded: end}
	c.mu.last, c.mu.calls[id] = id, s
	c.headersLocked(id, end, piece, pad, fields...)
	return s
}

// headersLocked writes a header in frames of piece bytes.
func (c *client) headersLocked(id uint32, end bool, piece, pad int, fields ...hpack.HeaderField) {
	c.mu.block.Reset()
	for _, f := range fields {
		_ = c.mu.encoder.WriteField(f)
	}
	first := c.mu.block.Next(piece)
	_ = c.mu.out.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: c.mu.block.Len() == 0, PadLength: uint8(pad),
	})
	for c.mu.block.Len() > 0 {
		next := c.mu.block.Next(piece)
		_ = c.mu.out.WriteContinuation(id, c.mu.block.Len() == 0, next)
	}
}

// dataLocked writes as many bytes of p as the windows allow, in a frame with padding. It returns
// their number.
func (c *client) dataLocked(s *call, p []byte, end bool, pad int) int {
	left := min(c.mu.sendWindow, s.sendWindow, c.mu.sendMax)
	if pad > 0 {
		left -= int64(pad) + 1
	}
	if left < min(1, int64(len(p))) {
		return 0
	}
	n := min(len(p), int(left))
	size := int64(n)
	s.uploaded = end && n == len(p)
	if pad > 0 {
		size += int64(pad) + 1
		_ = c.mu.out.WriteDataPadded(s.id, s.uploaded, p[:n], make([]byte, pad))
	} else {
		_ = c.mu.out.WriteData(s.id, s.uploaded, p[:n])
	}
	c.mu.sendWindow -= size
	s.sendWindow -= size
	return n
}

// widenLocked gives the server windows; s is nil for the connection's window.
func (c *client) widenLocked(s *call, n int64) {
	if s == nil {
		c.mu.window += n
		_ = c.mu.out.WriteWindowUpdate(0, uint32(n))
	} else {
		s.given += n
		_ = c.mu.out.WriteWindowUpdate(s.id, uint32(n))
	}
}

// cancelLocked resets a stream.
func (c *client) cancelLocked(s *call) {
	s.canceled = true
	_ = c.mu.out.WriteRSTStream(s.id, http2.ErrCodeCancel)
	c.pingLocked(func() { s.confirmed = true })
}

// pongLocked answers the server's oldest ping.
func (c *client) pongLocked() {
	_ = c.mu.out.WritePing(true, c.mu.asked[0])
	c.mu.asked = c.mu.asked[1:]
}

func (c *client) pingLocked(answered func()) {
	c.mu.pings = append(c.mu.pings, answered)
	_ = c.mu.out.WritePing(false, [8]byte{})
}

// await waits until done returns true or the connection ends. It returns the error of the
// connection.
func (c *client) await(done func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		if c.mu.err != nil {
			return c.mu.err
		}
		c.mu.changed.Wait()
	}
	return c.mu.broken
}

// note is what the client has read of a stream, or a frame of the connection.
type note struct {
	id   uint32
	text string // what came before the data
	data int    // bytes of DATA
	end  string // what came after it
}

// noteLocked notes a frame. Frames of one stream that follow each other are one note.
func (c *client) noteLocked(f http2.Frame) {
	h := f.Header()
	of := &note{id: h.StreamID}
	if n := len(c.mu.notes); n > 0 && h.StreamID > 0 && c.mu.notes[n-1].id == h.StreamID {
		of, c.mu.notes = &c.mu.notes[n-1], c.mu.notes[:n-1]
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		of.text = map[bool]string{false: "settings", true: "ack"}[f.IsAck()]
	case *http2.PingFrame:
		of.text = map[bool]string{false: "ping", true: "pong"}[f.IsAck()]
	case *http2.GoAwayFrame:
		of.text = strings.Replace(fmt.Sprintf("goaway:%d:%v", f.LastStreamID, f.ErrCode), fmt.Sprint(windowMax), "max", 1)
	case *http2.MetaHeadersFrame:
		of.text += " " + f.PseudoValue("status")
	case *http2.DataFrame:
		of.data += len(f.Data())
	case *http2.RSTStreamFrame:
		of.end += "!" + f.ErrCode.String()
	case *http2.WindowUpdateFrame:
		if of.text+of.end == "" && of.data == 0 {
			return
		}
	}
	if (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream) {
		of.end += "."
	}
	c.mu.notes = append(c.mu.notes, *of)
}

// String implements fmt.Stringer.
func (n note) String() string {
	if n.id == 0 {
		return n.text
	}
	text := fmt.Sprintf("%d:%s", n.id, strings.ReplaceAll(strings.TrimSpace(n.text), " ", ","))
	if n.data > 0 {
		text += fmt.Sprintf("+%d", n.data)
	}
	return text + n.end
}
