// Package client sends requests to a kube-apiserver and reads the responses: probes, lists,
// metadata lists and watch streams. The encodings are JSON, protobuf and the rows of Tables. The
// package also contains the selectable fields of built-in types and their positions in JSON and
// protobuf.
//
// [Servers] makes the apiservers of one cluster look like a single server. It chooses the server
// for requests, checks whether upstream can be reached, and lets the feeds resume after an outage,
// a few at a time ([Health]).
package client
