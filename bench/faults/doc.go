// Package faults breaks things around the proxy while clients write, watch and read. Then it
// compares what they saw with what the apiserver says (package conformance).
//
// A relay (package cluster) stands between the proxy and the apiserver, and another one between the
// clients and the proxy. It cuts, resets, freezes, slows down, truncates and corrupts connections.
// Processes are stopped, killed, suspended and started again.
//
// Each scenario counts violations. A watcher must see no event lost, duplicated, reordered or
// invented. A read of the most recent state must not lack a write that was acknowledged before it.
//
// In some scenarios upstream loses its history. Then the events of a watcher must fit each other
// and lead to the final state. Watchers with a label selector may be told to begin anew. In others
// upstream goes back to an earlier state. Then a watcher is compared with what the apiserver has
// sent since.
//
// `make faults` runs all scenarios and writes the table of bench/results; `make test` a few.
//
// Other tests cover restarts under thousands of informers (TestRestarts), kills at random moments
// (TestKills) and a client that does not read (TestStalled). In TestSoak clients come and go for as
// long as one likes.
package faults
