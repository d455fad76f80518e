//go:build verify

package allowed

import (
	"testing"
	"time"
)

// TestLongWalk is TestWalk with more users and namespaces. They have fewer reviews each, as the
// apiserver answers only some hundreds per second. A proxy that knows many decisions repeats
// refusals later.
func TestLongWalk(t *testing.T) {
	const busy = 30 * time.Second // decisions count for twelve seconds at most; the rest is for a busy machine
	usual := slack
	slack = busy
	t.Cleanup(func() { slack = usual })
	runWalk(t, size{
		users: walkers, namespaces: 60, changes: 1000, stops: 4, pause: 20 * time.Millisecond, prefix: "long-",
		settings: "authorization: {webhook: {cacheAuthorizedTTL: 10s, cacheUnauthorizedTTL: 10s}}\n",
	})
}
