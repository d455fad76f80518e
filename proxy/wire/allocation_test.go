//go:build !race

package wire

import "testing"

// Events are written without allocations.
func TestEventAllocations(t *testing.T) {
	var item Object = bare(`{"metadata":{"resourceVersion":"9"},"spec":{}}`)
	pod := samplePod()
	var message Object = bare(noErr(t)(pod.Marshal()))
	buf := make([]byte, 0, 4096)
	for name, append := range map[string]func(){
		"JSON":                 func() { buf, _ = podForm.AppendEvent(buf[:0], "MODIFIED", item) },
		"protobuf":             func() { buf, _ = NewForm(inProto, protoPodKind).AppendEvent(buf[:0], "MODIFIED", message) },
		"metadata in protobuf": func() { buf, _ = NewForm(metaProto, protoPodKind).AppendEvent(buf[:0], "MODIFIED", message) },
	} {
		form := testing.AllocsPerRun(100, append)
		made := 0.0
		if name != "JSON" {
			made = testing.AllocsPerRun(100, func() { NewForm(Choice{MediaType: Protobuf, Partial: name != "protobuf"}, protoPodKind) })
		}
		if form > made {
			t.Errorf("%s: an event costs %v allocations, want none", name, form-made)
		}
	}
}
