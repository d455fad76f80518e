package access

import (
	"strings"
	"testing"
)

// If the proxy may not read a resource, it forwards requests for this resource and logs that once.
// It still caches the other resources.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	f := w.front(t, poorProxy, withAnonymous)
	ask := func(resource string) int {
		before := f.fromCache(t)
		for _, name := range []string{"admin", "reader", "one", "nobody", "anonymous", "certificate", "garbage", "certificate as reader"} {
			for _, target := range []string{"/api/v1/", "/api/v1/namespaces/" + teamA + "/"} {
				for _, query := range []string{"?resourceVersion=0", "?" + watchWithState} {
					r := request{target: target + resource + query, watches: strings.HasPrefix(query, "?watch")}
					if err := compare(w.server.must(t, w.callers[name], r), f.must(t, w.callers[name], r)); err != nil {
						t.Errorf("%s: %s: %v", name, r.target, err)
					}
				}
			}
		}
		return f.fromCache(t) - before
	}
	if first, cached, then := ask("configmaps"), ask("pods"), ask("configmaps"); first != 0 || cached == 0 || then != 0 {
		t.Errorf("%d and %d answers about configmaps came from the cache, %d about pods", first, then, cached)
	}
	var said []string
	for line := range strings.Lines(f.proxy.Log()) {
		if strings.Contains(line, "not cached; requests are forwarded") {
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "configmaps") {
		t.Errorf("the log says %q", said)
	}
}
