// Package servers makes the apiservers of one cluster look like a single server. It chooses the
// server for requests, checks whether upstream can be reached, and orders the feeds that resume
// after an outage.
package servers
