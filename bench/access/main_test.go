package access

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m, cluster.ManyAtOnce) }
