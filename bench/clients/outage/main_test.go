// Package outage stops apiservers under many watches and informers, and stops proxies in front of
// them. Each client must still see every change.
package outage

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

func TestMain(m *testing.M) { clients.Main(m) }
