package main

import (
	"testing"

	"github.com/watchproxy/watchproxy/config"
)

// Clients' connections never use all descriptors.
func TestForClients(t *testing.T) {
	for _, test := range []struct{ descriptors, forwards, want int }{
		{10, 4, 5}, {100, 4, 50}, {256, 1, 191}, {256, 400, 128}, {1024, 4, 896}, {1024, 400, 560}, {1 << 20, 400, 1<<20 - 1<<17}, {1 << 20, 1 << 62, 1 << 19},
	} {
		if got := forClients(test.descriptors, test.forwards); got != test.want {
			t.Errorf("%d of %d with %d forwards, want %d", got, test.descriptors, test.forwards, test.want)
		}
	}
}

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
