package access

import (
	"fmt"
	"strings"
	"testing"
)

// If the proxy may not read a resource, it forwards requests for this resource and logs that once.
// It still caches the other resources.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	f := w.front(t, poorProxy, withAnonymous)
	names := []string{"admin", "reader", "one", "nobody", "anonymous", "certificate", "garbage", "certificate as reader"}
	ask := func(resource string) int {
		var cells []cell
		for _, path := range []string{"/api/v1/" + resource, "/api/v1/namespaces/" + teamA + "/" + resource} {
			c := &collection{path: path, name: "one", selectors: []string{""}}
			for _, r := range c.reads("0") {
				if strings.Contains(r.target, "continue=") || strings.Contains(r.target, "Exact") {
					continue // the resource has no such resourceVersion here
				}
				for _, name := range names {
					cells = append(cells, cell{w.callers[name], r})
				}
			}
		}
		before := f.fromCache(t)
		w.check(t, f, cells, coldWatchers, &tally{})
		return f.fromCache(t) - before
	}
	if n := ask("configmaps"); n != 0 {
		t.Errorf("%d answers about configmaps came from the cache", n)
	}
	if n := ask("pods"); n == 0 {
		t.Error("no answer about pods came from the cache")
	}
	if n := ask("configmaps"); n != 0 {
		t.Errorf("then %d answers about configmaps came from the cache", n)
	}
	var said []string
	for line := range strings.Lines(f.proxy.Log()) {
		if strings.Contains(line, "not cached; requests are forwarded") {
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.Contains(fmt.Sprint(said), "configmaps") {
		t.Errorf("the log says %q", said)
	}
}
