// Package client sends requests to a kube-apiserver and reads its answers: probes, lists, metadata
// lists and watch streams, in JSON and protobuf. It knows the selectable fields of built-in types
// and their positions in both encodings.
package client
