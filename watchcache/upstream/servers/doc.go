// Package servers makes the apiservers of one cluster look like a single server. It chooses the
// server for requests, checks whether upstream can be reached, and lets the feeds resume after an
// outage, a few at a time.
package servers
