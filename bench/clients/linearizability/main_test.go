// Package linearizability checks consistent reads against acknowledged writes, with watches that
// reach the proxy late. The tests count reads, so the proxy has the race detector only if they have
// it. `make linearizability` runs them for longer.
package linearizability

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
