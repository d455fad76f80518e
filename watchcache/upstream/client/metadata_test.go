package client

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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

// readMetadata returns the same result as the API's own types, for bytes that arrive in any parts. A
// truncated list is an error.
func FuzzMetadata(f *testing.F) {
	list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	f.Add(enveloped(f, "PartialObjectMetadataList", &list))
	list.Continue = "c"
	for i := range 20 {
		o := configMap(fmt.Sprint("o", i), strconv.Itoa(7*i+1)).ObjectMeta
		o.Labels, o.Annotations = map[string]string{"a": "b"}, map[string]string{"c": strings.Repeat("d", 20*i)}
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: o})
	}
	whole := enveloped(f, "PartialObjectMetadataList", &list)
	f.Add(whole)
	f.Add([]byte("k8s\x00\x12\x00"))
	for cut := range len(whole) - 4 { // without the last, empty fields, the list would still be valid
		if got, err := readMetadata(protoConfigMaps, bytes.NewReader(whole[:cut])); err == nil {
			f.Errorf("%d of %d bytes are taken for a list: %+v", cut, len(whole), got)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, r := range []*object.Resource{protoConfigMaps, {GVR: protoConfigMaps.GVR}} {
			got, err := readMetadata(r, bytes.NewReader(body))
			again, err2 := readMetadata(r, iotest.OneByteReader(bytes.NewReader(body)))
			if (err == nil) != (err2 == nil) || err == nil && !again.equal(got) {
				t.Errorf("by bytes: %+v, %v; at once: %+v, %v", again, err2, got, err)
			}
			if err != nil {
				continue // readMetadata accepts fewer wire types
			}
			// Fields that readMetadata skips may be malformed.
			if want, err := decodeMetadata(r, body); err == nil && !got.equal(want) {
				t.Errorf("%+v, by the API's types %+v", got, want)
			}
		}
	})
}
