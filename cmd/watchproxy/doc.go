// Command watchproxy is a caching watch proxy for the Kubernetes API.
//
// BOUNDS.md lists everything in memory that clients, upstream or operators can fill, and how much
// that may be.
package main
