package main

import (
	"testing"

	"github.com/watchproxy/watchproxy/config"
)

// With authentication, a user has half of the connections that are served, and at least one. Without it, all
// clients are one user.
func TestConnectionsOfAUser(t *testing.T) {
	for _, test := range []struct {
		mode                    config.AuthenticationMode
		configured              int
		memory, files, all, one int
	}{
		{config.Delegated, 10, 0, 0, 10, 5},
		{config.Delegated, 10, 6, 0, 6, 3},
		{config.Delegated, 6, 10, 0, 6, 3},
		{config.Delegated, 10, 0, 8, 7, 3},
		{config.Delegated, 10, 6, 80, 6, 3},
		{config.Delegated, 1, 0, 0, 1, 1},
		{config.NoAuthentication, 10, 0, 0, 10, 10},
		{config.NoAuthentication, 10, 6, 0, 6, 6},
		{config.NoAuthentication, 10, 0, 8, 7, 7},
	} {
		c := config.Default()
		c.Authentication.Mode, c.Limits.MaxConnections = test.mode, &test.configured
		got := limits(c, test.memory, test.files)
		if all, _ := got.Crowd(); all != test.all || got.UserConnections != test.one {
			t.Errorf("%+v: %d connections, %d of a user", test, all, got.UserConnections)
		}
	}
}
