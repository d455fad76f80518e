// Package commandline tests watchproxy's own commands, and the commands that the README shows.
package commandline

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { clients.Main(m, cluster.ManyAtOnce) }

var sharedWorld = cluster.Shared(clients.NewWorld)
