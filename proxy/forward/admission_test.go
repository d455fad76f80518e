package forward

import "testing"

// toldOf returns an attempt that calls ended when it ends.
func toldOf(t *Attempt, ended func()) *Attempt {
	t.Hold(ended)
	return t
}

// Each part is given back once, also if it is added after the end.
func TestAdmission(t *testing.T) {
	var a Admission
	var back []int
	for i := range 2 {
		a.Hold(func() { back = append(back, i) })
	}
	if len(back) != 0 {
		t.Error("given back too early")
	}
	a.Release()
	a.Release()
	a.Hold(func() { back = append(back, 2) })
	if len(back) != 3 || back[0] != 0 || back[2] != 2 {
		t.Errorf("given back: %v", back)
	}
}
