package client

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// decodeMetadata decodes a metadata list with the API's own types.
func decodeMetadata(r *object.Resource, body []byte) (list MetadataList, err error) {
	var envelope runtime.Unknown
	if err := readEnvelope(body, &envelope); err != nil {
		return list, err
	}
	var l metav1.PartialObjectMetadataList
	if err := l.Unmarshal(envelope.Raw); err != nil {
		return list, err
	}
	for _, o := range l.Items {
		rv, err := object.ParseResourceVersion(o.ResourceVersion)
		if err != nil {
			return list, err
		}
		list.States = append(list.States, object.State{Key: r.Key(o.Namespace, o.Name), UID: string(o.UID), ResourceVersion: rv})
	}
	list.Next = l.Continue
	list.RV, err = object.ParseResourceVersion(l.ResourceVersion)
	return list, err
}

func (l MetadataList) equal(m MetadataList) bool {
	return l.RV == m.RV && l.Next == m.Next && slices.Equal(l.States, m.States)
}

// readMetadata returns the same result as the API's own types, for bytes that arrive in any parts.
// A truncated list is an error.
func TestReadMetadata(t *testing.T) {
	seed := int64(cachetest.Seed(t))
	random := rand.New(rand.NewSource(seed))
	filler := randfill.NewWithSeed(seed).NilChance(0.5).NumElements(0, 4)
	for range 50 {
		list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(1 + random.Intn(1e9))}}
		if random.Intn(2) == 0 {
			list.Continue = "token"
		}
		for i := range random.Intn(20) {
			var o metav1.PartialObjectMetadata
			filler.Fill(&o.ObjectMeta)
			o.Name, o.Namespace, o.ResourceVersion = fmt.Sprintf("o%d", i), "ns", strconv.Itoa(1+random.Intn(1e9))
			list.Items = append(list.Items, o)
		}
		body := enveloped(t, "PartialObjectMetadataList", &list)
		for _, r := range []*object.Resource{protoConfigMaps, {GVR: protoConfigMaps.GVR}} {
			want, err := decodeMetadata(r, body)
			if err != nil {
				t.Fatal(err)
			}
			for how, reader := range map[string]io.Reader{
				"whole": bytes.NewReader(body), "by bytes": iotest.OneByteReader(bytes.NewReader(body)), "by halves": iotest.HalfReader(bytes.NewReader(body)),
			} {
				if got, err := readMetadata(r, reader); err != nil || !got.equal(want) {
					t.Fatalf("%s: %+v (%v), want %+v", how, got, err, want)
				}
			}
		}
		cut := 1 + random.Intn(len(body)-1)
		cut = min(cut, len(body)-5) // without the last, empty fields, the list would still be valid
		if got, err := readMetadata(protoConfigMaps, bytes.NewReader(body[:cut])); err == nil {
			t.Errorf("%d of %d bytes are taken for a list: %+v", cut, len(body), got)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(enveloped(f, "PartialObjectMetadataList", &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "c"},
		Items:    []metav1.PartialObjectMetadata{{ObjectMeta: configMap("a", "7").ObjectMeta}},
	}))
	f.Add([]byte("k8s\x00\x12\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := readMetadata(protoConfigMaps, bytes.NewReader(body))
		if err != nil {
			return // readMetadata accepts fewer wire types
		}
		// Fields that readMetadata skips may be malformed.
		if want, err := decodeMetadata(protoConfigMaps, body); err == nil && !got.equal(want) {
			t.Errorf("%+v, by the API's types %+v", got, want)
		}
	})
}
