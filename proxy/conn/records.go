package conn

import (
	"encoding/binary"
	"errors"
)

// recordHeader is the size of the header of a TLS record, in bytes: its type, version and length.
const recordHeader = 5

// idleMost limits the bytes of records in a row that bring no data, after the handshake. To ask for
// new keys takes 22.
const idleMost = 4 << 10

var errNoData = errors.New("too many bytes of TLS bring no data")

// records follows the TLS records that a socket reads. TLS collects a handshake message of up to
// 256 KiB before it looks at it, also after the handshake, and keeps the buffer for as long as the
// connection is open. When TLS wants more bytes, it has used all records that were whole. If none
// of them brought data, all were part of such messages.
type records struct {
	header [recordHeader]byte
	begun  int  // bytes of the header that were read
	left   int  // bytes of the record that were not read yet
	whole  int  // bytes of the records that became whole since TLS wanted more
	idle   int  // bytes of the records that TLS has used since the last data
	data   bool // TLS has returned data since it wanted more
}

// want says that TLS wants more bytes. It returns false if too many have brought no data.
func (r *records) want() bool {
	if r.idle += r.whole; r.data {
		r.idle = 0
	}
	r.whole, r.data = 0, false
	return r.idle <= idleMost
}

func (r *records) read(p []byte) {
	for len(p) > 0 {
		if r.begun < recordHeader {
			n := copy(r.header[r.begun:], p)
			if r.begun, p = r.begun+n, p[n:]; r.begun < recordHeader {
				return
			}
			r.left = int(binary.BigEndian.Uint16(r.header[3:]))
		}
		n := min(r.left, len(p))
		if r.left, p = r.left-n, p[n:]; r.left == 0 {
			r.whole += int(binary.BigEndian.Uint16(r.header[3:]))
			r.begun = 0
		}
	}
}
