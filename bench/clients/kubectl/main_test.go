// Package kubectl compares what kubectl does through the proxy and at the apiserver: reads, writes,
// watches, logs, exec and attach. Package access forwards a port.
package kubectl

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { clients.Main(m) }

var sharedWorld = cluster.Shared(clients.NewWorld)
