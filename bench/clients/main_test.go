package clients

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { Main(m) }

var sharedWorld = cluster.Shared(NewWorld)
