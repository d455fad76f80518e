// Package access holds watchproxy to the apiserver's own decisions about who may do what. Its proxies authenticate and
// authorize their clients, and they have no rights but those of config/rbac.yaml.
//
// TestMatrix asks the apiserver and the proxy for the same reads with the same credentials, for every kind of caller and
// every kind of cached read, with caches that are full and with caches that are not there yet. The two answers must be
// the same, allowed or refused. The other tests hold what a comparison of answers cannot show: as whom a forwarded
// request arrives upstream, how soon a right ends that was taken away, what many callers cost, and what becomes of a
// proxy that may not read something.
//
// By default the matrix asks a random part of its questions, which -seed repeats. With -everything it asks all: some
// 43,000 with full caches.
// With -self the apiserver takes the place of the proxy: a difference is then one of the test.
package access
