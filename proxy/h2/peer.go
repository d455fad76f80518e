package h2

import "golang.org/x/net/http2"

// peer is what the client allows: its settings, and its window for the whole connection.
type peer struct {
	window   int64 // send window of the connection
	widest   int64 // the largest window of the connection so far
	initial  int64 // send window of a new stream
	frameMax int   // the largest frame that the client accepts
	encoder  *encoder
}

// newPeer returns what a client allows before its SETTINGS.
func newPeer() peer {
	return peer{
		window:   windowInitial,
		widest:   windowInitial,
		initial:  windowInitial,
		frameMax: frameMax,
		encoder:  newEncoder(),
	}
}

func (p *peer) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		p.encoder.Resize(s.Val)
	case http2.SettingInitialWindowSize:
		p.initial = int64(s.Val)
	case http2.SettingMaxFrameSize:
		p.frameMax = int(min(s.Val, bufferMax))
	}
	return nil
}

func (p *peer) widen(n int64) error {
	if p.window += n; p.window > windowMax {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	p.widest = max(p.widest, p.window)
	return nil
}

const leastMost = 64 << 10

// least returns the window from which it is worth to send, for a sender that has left bytes to send
// (RFC 9293, 3.8.6.2.1). A client may give window back only when half of it is used, so half of the
// windows that it gives when it has read everything must be enough.
func (p *peer) least(left int) int64 {
	return max(1, min(int64(left), leastMost, p.initial/2, p.widest/2))
}
