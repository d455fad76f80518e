package main

import (
	"testing"

	"github.com/watchproxy/watchproxy/config"
)

// With authentication, a user has half of the connections for which there is memory, and at least one.
// Without it, all clients are one user.
func TestConnectionsOfAUser(t *testing.T) {
	for _, test := range []struct {
		mode            config.AuthenticationMode
		configured      int
		room, all, each int
	}{
		{config.Delegated, 10, 0, 10, 5},
		{config.Delegated, 10, 6, 6, 3},
		{config.Delegated, 6, 10, 6, 3},
		{config.Delegated, 1, 0, 1, 1},
		{config.NoAuthentication, 10, 0, 10, 10},
		{config.NoAuthentication, 10, 6, 6, 6},
	} {
		c := config.Default()
		c.Authentication.Mode, c.Limits.MaxConnections = test.mode, &test.configured
		if got := limits(c, test.room); got.Connections != test.all || got.UserConnections != test.each {
			t.Errorf("%+v: %d connections, %d of a user", test, got.Connections, got.UserConnections)
		}
	}
}
