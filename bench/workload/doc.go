// Package workload is what commands of the bench put into an apiserver: pods like real ones, and writes at a rate.
package workload
