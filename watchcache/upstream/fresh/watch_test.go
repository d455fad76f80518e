package fresh

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// If upstream is a proxy that relists, its events may have revisions of other resources. A ledger's
// watch counts only revisions above all that it has shown.
func TestRelistedEventsDoNotCount(t *testing.T) {
	const from = 100
	one := feed.OwnerOf(schema.GroupResource{Resource: "one"})
	two := feed.OwnerOf(schema.GroupResource{Resource: "two"})
	k := NewKeeper(&feed.Shared{}, nil, nil)
	k.Ledger.Begin()
	for rv := uint64(1); rv <= EvidenceEnough; rv++ {
		k.Ledger.Attest([]Reading{{Of: one, RV: rv}, {Of: two, RV: rv}, {Of: one, RV: rv}})
	}
	var stream []byte
	for _, rv := range []uint64{from, from + 3, from + 2, from + 5} {
		stream = append(stream, metadataFrame(rv)...)
	}
	s := client.NewProtoStream(bytes.NewReader(stream), &metadataOnly, ledgerBuffer)
	if err := k.read(s, one, from); err != nil {
		t.Fatal(err)
	}
	for rv, want := range map[uint64]bool{from: false, from + 2: false, from + 3: true, from + 5: true} {
		if got := k.Ledger.Proves(0, two, rv-1, rv); got != want {
			t.Errorf("revision %d is noted: %t", rv, got)
		}
	}
}
