//go:build !race

package projection

import "testing"

func TestAllocations(t *testing.T) {
	cut, object := Keep(paths("spec/nodeName", "status/conditions/*/type")), []byte(pod)
	dst := make([]byte, 0, len(object))
	if n := testing.AllocsPerRun(100, func() { _, _ = cut.Append(dst, object) }); n > 0 {
		t.Errorf("%v allocations for an object", n)
	}

	message := messageOf(cut)
	encoded := nested(2, []byte("\x52\x01a")) // spec.nodeName
	if n := testing.AllocsPerRun(100, func() { _, _ = message.Append(dst, encoded) }); n > 0 {
		t.Errorf("%v allocations for a message", n)
	}
}
