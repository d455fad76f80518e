package main

import "testing"

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
