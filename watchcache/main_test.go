package watchcache_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
)

// TestMain sets the seed for the tests in package watchcache, which cannot import cachetest.
func TestMain(m *testing.M) {
	watchcache.Seed = cachetest.DefaultSeed()
	goleak.VerifyTestMain(m)
}
