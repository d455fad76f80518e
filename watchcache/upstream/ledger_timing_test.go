package upstream

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// revisions is a watch whose events use successive revisions.
type revisions struct {
	frame  []byte
	digits []byte // the digits of the frame's revision
	next   uint64
	left   int
	unread []byte
}

func newRevisions(from uint64, n int) *revisions {
	r := &revisions{frame: metadataFrame(from), next: from, left: n}
	at := bytes.Index(r.frame, []byte(strconv.FormatUint(from, 10)))
	r.digits = r.frame[at : at+len(strconv.FormatUint(from, 10))]
	return r
}

// Read implements io.Reader.
func (r *revisions) Read(p []byte) (n int, err error) {
	for n < len(p) && (len(r.unread) > 0 || r.left > 0) {
		if len(r.unread) == 0 {
			strconv.AppendUint(r.digits[:0], r.next, 10) // as long as the one before
			r.next++
			r.left--
			r.unread = r.frame
		}
		copied := copy(p[n:], r.unread)
		n += copied
		r.unread = r.unread[copied:]
	}
	if n == 0 {
		return 0, errEnd
	}
	return n, nil
}

var errEnd = fmt.Errorf("the end")

// BenchmarkLedger measures the cost of a ledger watch's event, from its bytes on.
func BenchmarkLedger(b *testing.B) {
	l := &ledger.Ledger{}
	l.Begin()
	for rv := range uint64(ledger.EvidenceEnough) {
		l.Attest([]ledger.Reading{{Of: 1, RV: rv}, {Of: 2, RV: rv}, {Of: 1, RV: rv}})
	}
	feeds := &Feeds{ledger: l}
	k := &keeper{ledger: l, feeds: feeds}
	const from = 1_000_000_000
	b.ReportAllocs()
	if err := k.read(client.NewProtoStream(newRevisions(from, b.N), &metadataOnly, ledgerBuffer), 1, from-1); err == nil {
		b.Fatal("there is no end")
	}
	if _, highest := l.Standing(1); highest != from+uint64(b.N)-1 {
		b.Fatalf("noted up to %d of %d", highest-from, b.N)
	}
}
