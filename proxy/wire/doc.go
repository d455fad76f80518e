// Package wire writes the bytes that kube-apiserver would write. It owns every
// encoding and the choice between them, and knows nothing of caches or HTTP
// servers: it turns the bytes of kept objects into the bytes of lists, objects
// and watch events, without decoding them.
//
// The forms were read off kube-apiserver 1.36: built-in types put kind and
// apiVersion first, and the items of their lists have neither; custom resources
// sort all keys, their items carry both, and their lists always have a continue
// member. A body ends with a newline, as does each watch event.
package wire
