package read

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A read may get a state of the resource's maxAge, unless it limits the age itself. A get that does
// is forwarded.
func TestCacheControl(t *testing.T) {
	fs, rd := newStill(t, schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}, "LimitRange", "[]")
	fs.fill(t, map[string]string{"a/x": ""})
	fs.aged = 1500 * time.Millisecond
	for target, get := range map[string]bool{
		"/api/v1/namespaces/a/limitranges":         false,
		"/api/v1/limitranges?limit=1":              false,
		"/api/v1/limitranges?watch=1":              false,
		"/api/v1/namespaces/a/limitranges/x":       true,
		"/api/v1/namespaces/a/limitranges/missing": true,
	} {
		for _, limits := range []string{"", "no-cache", "max-age=0", "no-store, no-transform"} {
			v := fs.ask(t, rd, target, "Cache-Control: "+limits)
			if get && limits != "" {
				if v.Answer != nil || v.Reason != MostRecent {
					t.Errorf("%s, %q: %+v", target, limits, v)
				}
				continue
			}
			want := "2"
			if limits != "" {
				want = ""
			}
			if v.Answer == nil {
				t.Errorf("%s, %q: %+v", target, limits, v)
			} else if age := v.Answer.Header.Get("Age"); age != want {
				t.Errorf("%s, %q: the age is %q instead of %q", target, limits, age, want)
			}
		}
	}
}
