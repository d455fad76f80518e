//go:build verify

package allowed

import (
	"testing"
	"time"
)

// TestLongWalk is TestWalk with many users and namespaces.
func TestLongWalk(t *testing.T) {
	runWalk(t, size{users: walkers, namespaces: 200, changes: 1000, stops: 5, pause: 30 * time.Millisecond, prefix: "long-"})
}
