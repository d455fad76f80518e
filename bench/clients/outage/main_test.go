// Package outage stops one of several apiservers under many watches, each of which must see every
// change, and cuts a proxy off from its apiserver. Package faults restarts a single apiserver.
package outage

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

func TestMain(m *testing.M) { clients.Main(m) }
