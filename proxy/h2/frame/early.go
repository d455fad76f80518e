package frame

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Early contains the streams whose responses ended before their requests. RST_STREAM makes such a
// client stop sending. A client that reads RST_STREAM together with the response may lose the
// response: curl 7.88 then reports no status, and Node.js 20 waits for one. So the first PING
// follows the response, and RST_STREAM follows the client's answer, as the client has then read the
// response. The second PING follows RST_STREAM. After its answer, no more frames of the request
// arrive.
//
// The zero value is ready for use.
type Early struct {
	reset map[uint32]bool // whether RST_STREAM was sent, by stream
}

// earlyMax limits the streams of a client that does not answer PINGs.
const earlyMax = 100

// AppendEarly appends what follows the end of an early response. Beyond the limit, this is
// RST_STREAM.
func (e *Early) AppendEarly(b []byte, id uint32) []byte {
	if len(e.reset) >= earlyMax {
		return AppendReset(b, id, http2.ErrCodeNo)
	}
	if e.reset == nil {
		e.reset = map[uint32]bool{}
	}
	e.reset[id] = false
	return AppendPing(b, 0, [8]byte(binary.BigEndian.AppendUint64(nil, uint64(id))))
}

// Pong returns the frames that follow the answer to a PING with this payload, or nil.
func (e *Early) Pong(payload [8]byte) []byte {
	id := binary.BigEndian.Uint32(payload[4:])
	reset, ok := e.reset[id]
	switch {
	case !ok:
		return nil
	case reset:
		delete(e.reset, id)
		return nil
	}
	e.reset[id] = true
	return AppendPing(AppendReset(nil, id, http2.ErrCodeNo), 0, payload)
}

// Unread reports whether the client may not have read all early responses yet.
func (e *Early) Unread() bool {
	for _, reset := range e.reset {
		if !reset {
			return true
		}
	}
	return false
}

// Resets returns RST_STREAM for the streams that wait for it, or nil. It is for the end of a
// connection.
func (e *Early) Resets() (b []byte) {
	for id, reset := range e.reset {
		if !reset {
			b = AppendReset(b, id, http2.ErrCodeNo)
		}
	}
	return b
}

// Late reports whether a frame of a request came after the end of an early response. If the frame
// ends the request, the stream needs no RST_STREAM.
func (e *Early) Late(id uint32, ends bool) bool {
	_, late := e.reset[id]
	if ends {
		delete(e.reset, id)
	}
	return late
}
