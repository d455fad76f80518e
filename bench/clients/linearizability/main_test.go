// Package linearizability checks consistent reads against acknowledged writes while the proxy's
// watches are delayed. The tests need many reads, so the proxy is built with the race detector only
// if the tests are. `make linearizability` runs them for longer.
package linearizability

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
