// Package servers is the way to the apiservers of one cluster. It decides which server is used,
// whether upstream is there, and which feed goes first after an outage. To callers, the servers
// look like one.
package servers
