// Package faults breaks things around the proxy while writers write, watchers watch and readers read, and then holds what
// all of them saw against what the apiserver tells (package conformance).
//
// A relay (package cluster) stands between the proxy and the apiserver, and another one between the clients and the
// proxy. It cuts, resets, freezes, slows down, truncates and corrupts connections. Processes are stopped, killed,
// suspended and started again.
//
// Each scenario counts what a watcher must not see: events lost, duplicated, reordered, invented; and reads of the most
// recent state that lacked something which was acknowledged before. Where upstream itself forgets, watchers are held
// against themselves and against what is there in the end, and those by a label may be told to begin anew. Where it goes
// back in time, they are held against what it tells since.
// `make faults` runs all scenarios and writes the table of bench/results; `make test` a few.
//
// Beside the scenarios: restarts under thousands of informers (TestRestarts), kills at random moments (TestKills), a
// client that does not read (TestStalled), and clients that come and go for as long as one likes (TestSoak).
package faults
