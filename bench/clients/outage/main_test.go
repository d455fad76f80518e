// Package outage takes the apiserver away under many watches and informers, and takes proxies away
// in front of them. Each client must see every change.
package outage

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

func TestMain(m *testing.M) { clients.Main(m) }
