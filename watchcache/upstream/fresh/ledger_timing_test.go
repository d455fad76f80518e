package fresh

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// BenchmarkLedger measures the cost of the events of a ledger watch, including decoding.
func BenchmarkLedger(b *testing.B) {
	k := NewKeeper(&feed.Shared{}, nil, nil)
	l := &k.Ledger
	l.Begin()
	one, two := feed.OwnerOf(schema.GroupResource{Resource: "one"}), feed.OwnerOf(schema.GroupResource{Resource: "two"})
	for rv := uint64(1); rv <= EvidenceEnough; rv++ {
		l.Attest([]Reading{{Of: one, RV: rv}, {Of: two, RV: rv}, {Of: one, RV: rv}})
	}
	const from, events = 1_000_000_000, 10_000
	var stream []byte
	for rv := range uint64(events) {
		stream = append(stream, metadataFrame(from+rv)...)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := k.read(client.NewProtoStream(bytes.NewReader(stream), &metadataOnly, ledgerBuffer), one, from-1); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
	if _, highest := l.Position(one); highest != from+events-1 {
		b.Fatalf("noted up to %d of %d", highest-from, events)
	}
}

// metadataFrame returns an event with an object's metadata at a revision.
func metadataFrame(rev uint64) []byte {
	o, _ := (&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", ResourceVersion: strconv.FormatUint(rev, 10)}}).Marshal()
	o, _ = (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, Raw: o}).Marshal()
	event, _ := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: append(slices.Clone(client.ProtobufPrefix), o...)}}).Marshal()
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}
