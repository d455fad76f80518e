package fresh

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// revisions is a watch stream whose events have successive revisions.
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
			strconv.AppendUint(r.digits[:0], r.next, 10) // the number of digits stays the same
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

// BenchmarkLedger measures the cost of an event of a ledger watch, including decoding.
func BenchmarkLedger(b *testing.B) {
	u := &feed.Upstream{}
	l := &u.Ledger
	l.Begin()
	for rv := uint64(1); rv <= ledger.EvidenceEnough; rv++ {
		l.Attest([]ledger.Reading{{Of: 1, RV: rv}, {Of: 2, RV: rv}, {Of: 1, RV: rv}})
	}
	k := &Keeper{Upstream: u}
	const from = 1_000_000_000
	b.ReportAllocs()
	if err := k.read(client.NewProtoStream(newRevisions(from, b.N), &metadataOnly, ledgerBuffer), 1, from-1); err == nil {
		b.Fatal("there is no end")
	}
	if _, highest := l.Standing(1); highest != from+uint64(b.N)-1 {
		b.Fatalf("noted up to %d of %d", highest-from, b.N)
	}
}

// metadataFrame returns an event with an object's metadata at a revision.
func metadataFrame(rev uint64) []byte {
	o, _ := (&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", ResourceVersion: strconv.FormatUint(rev, 10)}}).Marshal()
	o, _ = (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, Raw: o}).Marshal()
	event, _ := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: append(slices.Clone(client.ProtobufPrefix), o...)}}).Marshal()
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}
