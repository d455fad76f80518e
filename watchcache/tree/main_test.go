package tree_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// TestMain sets the seed for the tests in package tree, which cannot import cachetest.
func TestMain(m *testing.M) {
	tree.Seed = cachetest.DefaultSeed()
	goleak.VerifyTestMain(m)
}
