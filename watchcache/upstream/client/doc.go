// Package client sends requests to a kube-apiserver and reads its answers: probes, lists, metadata
// lists, watch streams, in JSON and protobuf. It knows the selectable fields of built-in types, and
// where they are in either encoding.
package client
