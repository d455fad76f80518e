// Command watchproxy is a caching watch proxy for the Kubernetes API.
//
// BOUNDS.md lists what clients, upstream and operators can fill in memory, with the bounds.
package main
