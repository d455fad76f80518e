package conn

// FrameReader reads for the framer of an HTTP/2 connection. Until the client is known, it waits
// below TLS, which needs less memory. A header block may have several frames. Beyond Free bytes, the
// block counts as a head.
type FrameReader struct {
	Conn    *Conn
	Free    int64
	Refused func() // called if there is no room
	read    int64  // bytes since the last FrameEnds
}

// Read implements io.Reader.
func (r *FrameReader) Read(p []byte) (n int, err error) {
	if r.Conn.Known() {
		n, err = r.Conn.Read(p)
	} else {
		n, err = r.Conn.WaitBelowTLS(func() (int, error) { return r.Conn.Read(p) })
	}
	if r.read += int64(n); !r.Conn.HeadGrows(r.read - r.Free) {
		r.Refused()
		return 0, ErrHeads
	}
	return n, err
}

// FrameEnds says that a frame, or a header block, was read or broke off.
func (r *FrameReader) FrameEnds() {
	r.read = 0
	r.Conn.HeadEnds()
}
