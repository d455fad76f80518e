// Package client sends requests to a kube-apiserver and reads its answers: probes, lists, metadata
// lists and watch streams, in JSON, in protobuf and as the rows of Tables. It knows the selectable
// fields of built-in types and their positions in JSON and protobuf.
package client
