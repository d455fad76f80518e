// Package workload creates load on an apiserver for the bench: realistic pods, and writes at a
// given rate.
package workload
