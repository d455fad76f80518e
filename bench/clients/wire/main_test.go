// Package wire tests connections: bodies, compressed watches, drain, TLS and HTTP/2. Packages
// access and hostile try to smuggle requests and to exceed limits.
package wire

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { clients.Main(m, cluster.ManyAtOnce) }

var sharedWorld = cluster.Shared(clients.NewWorld)
