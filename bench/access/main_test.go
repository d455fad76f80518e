package access

import (
	"flag"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var self = flag.Bool("self", false, "compare the apiserver with itself: no proxy is started")

func TestMain(m *testing.M) { cluster.Main(m) }

// notWithSelf skips a test of something that the apiserver does not do.
func notWithSelf(t *testing.T) {
	t.Helper()
	if *self {
		t.Skip("the apiserver is no proxy")
	}
}
