// Package servers is the way to the apiservers of one cluster: which of them is asked, whether it is
// there, and whose turn it is to ask it after it was away. Everything above it asks whichever server
// is the present one, as if there were one alone.
package servers
