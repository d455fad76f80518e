// Package workload fills an apiserver for the bench: with realistic pods, and with writes at a
// rate.
package workload
