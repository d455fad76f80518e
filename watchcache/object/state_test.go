package object

import (
	"testing"
	"unsafe"
)

// A State shares no memory with its object. Otherwise the states of a self-check would keep all of
// upstream's objects beside the cached ones.
func TestStateIsACopy(t *testing.T) {
	json := &Resource{Kind: "Node"}
	proto := &Resource{Kind: "Node", Encoding: Protobuf}
	pod := protoPod()
	pod.Namespace = ""
	for r, src := range map[*Resource][]byte{
		json:  []byte(`{"metadata":{"name":"web","uid":"u","resourceVersion":"99"}}`),
		proto: marshal(t, pod),
	} {
		o, err := r.ParseObject(src)
		if err != nil {
			t.Fatal(err)
		}
		s := o.State()
		if s != (State{"web", "u", 99}) {
			t.Errorf("%+v", s)
		}
		from := uintptr(unsafe.Pointer(unsafe.SliceData(o.raw)))
		for _, text := range []string{s.Key, s.UID} {
			if at := uintptr(unsafe.Pointer(unsafe.StringData(text))); at >= from && at < from+uintptr(len(o.raw)) {
				t.Errorf("%q lies in the object", text)
			}
		}
	}
}
