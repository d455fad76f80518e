package metrics

import (
	"fmt"
	"testing"
	"time"
)

// Forwarded requests are shown for five to six minutes, in a bounded number of kinds.
func TestRecent(t *testing.T) {
	var r recent
	began := time.Date(2026, 1, 2, 3, 4, 30, 0, time.UTC)
	kind := func(n int) Forwarded {
		return Forwarded{Verb: "list", Version: "v1", Resource: fmt.Sprint("r", n), Reason: "form"}
	}
	for range 3 {
		r.add(kind(1), began)
	}
	r.add(kind(2), began.Add(2*time.Minute))
	r.add(kind(1), began.Add(2*time.Minute))
	for after, want := range map[time.Duration]string{
		0:                           "r1 4, r2 1",
		recentMinutes * time.Minute: "r1 4, r2 1",
		6 * time.Minute:             "r1 1, r2 1",
		8 * time.Minute:             "",
		1000 * time.Minute:          "",
		recentMinutes*time.Minute + 29*time.Second: "r1 4, r2 1",
	} {
		got := ""
		for i, f := range r.all(began.Add(after)) {
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprint(f.Resource, " ", f.Count)
		}
		if got != want {
			t.Errorf("after %v: %q instead of %q", after, got, want)
		}
	}
	for n := range 2 * recentKinds {
		r.add(kind(n), began.Add(time.Hour))
	}
	if got := len(r.all(began.Add(time.Hour))); got != recentKinds {
		t.Errorf("%d kinds are kept", got)
	}
}
