// Package client asks a kube-apiserver and reads what it answers: probes, lists, lists of metadata,
// watch streams, in JSON and in protobuf. It knows which fields of built-in types can be selected,
// and where they are in either encoding.
package client
