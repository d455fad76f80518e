// Package faults causes faults around the proxy while clients write, watch and read. Then it
// compares the clients' observations with the apiserver's own events (package conformance).
//
// A relay (package cluster) stands between the proxy and the apiserver, and another relay between
// the clients and the proxy. The relays cut, reset, freeze, slow down, truncate and corrupt
// connections. Processes are stopped, killed, suspended and started again.
//
// Each scenario counts violations. A watcher must see all events, in order and without repetition
// or invention. A read of the most recent state must contain every write that was acknowledged
// before it.
//
// In some scenarios upstream loses its history. Then the events of a watcher must be consistent
// with each other and lead to the final state. Watchers with a label selector may get a 410 and
// begin anew.
//
// `make faults` runs all scenarios and writes the table in bench/results; `make verify` runs a few.
//
// Other tests cover restarts under informers (TestRestarts) and an object as large as etcd accepts
// (TestLargeObject). Package hostile checks that a proxy keeps nothing of clients that have left.
package faults
