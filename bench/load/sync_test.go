//go:build verify

package main

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Informers sync through the proxy. For any number of informers, upstream gets only the requests
// that prove that the cache is up to date (see judge).
func TestSync(t *testing.T) {
	proxy, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	// A large collection has more than 500 objects, the most that the proxy lists.
	r, err := measure(t.Context(), &options{herds: []int{5, 20}, pods: 600, watchproxy: proxy})
	r.print(t.Output())
	if err != nil {
		t.Error(err)
	}
}
