package client

import (
	"testing"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Bytes that are no service stay as they are, and are refused later.
func FuzzAsListed(f *testing.F) {
	f.Add([]byte(`{"spec":{"type":"ExternalName","internalTrafficPolicy":"Cluster"}}`))
	f.Add([]byte("\x12\x1a\x22\x0cExternalName\xb2\x01\x07Cluster\x12"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, encoding := range []object.Encoding{object.JSON, object.Protobuf} {
			r := &object.Resource{GVR: services, Encoding: encoding}
			if got := AsListed(r, src); len(got) > len(src) {
				t.Errorf("%s: %q becomes %q", encoding, src, got)
			}
		}
	})
}
