package workload

import (
	"regexp"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var ago = regexp.MustCompile(`(MICRO)?AGO\((-?\w+)\)`)

// TimestampsT returns a text with a timestamp in place of each AGO(DURATION), and one with
// microseconds in place of each MICROAGO(DURATION).
func TimestampsT(tb testing.TB, text string) string {
	tb.Helper()
	return ago.ReplaceAllStringFunc(text, func(found string) string {
		parts := ago.FindStringSubmatch(found)
		d, err := time.ParseDuration(parts[2])
		if err != nil {
			tb.Fatal(err)
		}
		format := time.RFC3339
		if parts[1] != "" {
			format = metav1.RFC3339Micro
		}
		return `"` + time.Now().Add(-d).UTC().Format(format) + `"`
	})
}
