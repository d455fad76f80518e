package fair

import (
	"runtime/debug"
	"testing"
)

// Garbage is collected before it exceeds half of the workspace.
func TestGarbageIsCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no other collections
	w := NewWorkspace(1000, false, 1000)
	w.CollectAfter(500)
	do := func() ([]byte, error) { return nil, nil }
	began := collections()
	for i, want := range []uint64{0, 0, 1, 1, 1, 2} {
		if _, err := w.Make(t.Context(), Claim{Size: 200}, do); err != nil {
			t.Fatal(err)
		}
		if n := collections() - began; n != want {
			t.Errorf("after body %d: %d collections, want %d", i, n, want)
		}
	}
	w.CollectAfter(0)
	if _, err := w.Make(t.Context(), Claim{Size: 1000}, do); err != nil {
		t.Fatal(err)
	}
	if n := collections() - began; n != 2 {
		t.Errorf("%d collections without a bound", n)
	}
}
