// Package access compares watchproxy's decisions about who may do what with the apiserver's own.
// Its proxies authenticate and authorize their clients. They have only the rights of
// config/rbac.yaml.
//
// TestMatrix sends the same reads with the same credentials to the apiserver and to the proxy. It
// covers every kind of caller and every kind of cached read, with full caches and with empty ones.
// The two answers must be the same, allowed or refused.
//
// The other tests check what a comparison of answers cannot show: the identity with which a
// forwarded request arrives upstream, the delay until a removed right ends, the cost of many
// callers, and a proxy that may not read some resource.
//
// Three of four requests use HTTP/2, the others HTTP/1.1. By default the matrix asks a random part of
// its questions; -seed repeats the run. With -everything it asks all questions: some 43,000 with full
// caches. With -self the apiserver takes the place of the proxy: a difference is then an error of the
// test.
package access
