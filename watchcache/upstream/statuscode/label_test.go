package statuscode

import "testing"

// Known codes are their own labels. All other codes have their class.
func TestLabel(t *testing.T) {
	for code, want := range map[int]string{
		0: "0", 1: "0xx", 101: "101", 200: "200", 299: "2xx", 404: "404", 429: "429", 499: "499",
		420: "4xx", 504: "504", 522: "5xx", 777: "7xx", 999: "9xx",
	} {
		if got := Label(code); got != want {
			t.Errorf("%d has the label %q, want %q", code, got, want)
		}
	}
	labels := map[string]bool{}
	for code := range 1000 {
		labels[Label(code)] = true
	}
	const most = 100
	if len(labels) > most {
		t.Errorf("all codes have %d labels", len(labels))
	}
}
