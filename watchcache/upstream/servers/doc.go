// Package servers makes the apiservers of one cluster look like a single one. It decides which
// server is used, whether upstream can be reached, and the order in which feeds resume after an
// outage.
package servers
