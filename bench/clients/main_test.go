package clients

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { Main(m, cluster.ManyAtOnce) }

var sharedWorld = cluster.Shared(NewWorld)
