//go:build !race

package projection

import "testing"

func TestAllocations(t *testing.T) {
	cut, object := Keep(paths("spec/nodeName", "status/conditions/*/type")), []byte(pod)
	dst := make([]byte, 0, len(object))
	if n := testing.AllocsPerRun(100, func() { _, _ = cut.Append(dst, object) }); n > 0 {
		t.Errorf("%v allocations for an object", n)
	}
}
