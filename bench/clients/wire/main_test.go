// Package wire tests connections: bodies, limits, identity, drain, smuggling, TLS and HTTP/2.
package wire

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { clients.Main(m, cluster.ManyAtOnce) }

var sharedWorld = cluster.Shared(clients.NewWorld)
