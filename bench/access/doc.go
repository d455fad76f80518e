// Package access compares watchproxy's access decisions with the apiserver's own. The proxies under
// test authenticate and authorize their clients, and have only the rights of config/rbac.yaml.
//
// TestMatrix sends the same reads with the same credentials to the apiserver and to the proxy. It
// covers every kind of caller and every kind of cached read, with full and with empty caches. The
// two answers must be the same, allowed or refused.
//
// The other tests check what a comparison of answers cannot show: with which identity a forwarded
// request arrives upstream, how soon a removed right ends, what many callers cost, and how a proxy
// works that may not read some resource.
//
// Three of four requests use HTTP/2, the others HTTP/1.1. By default the matrix asks a random part
// of its questions; -seed repeats a run. With -everything it asks all questions: some 43,000 with
// full caches. With -self the apiserver is compared with itself, without a proxy. Any difference is
// then an error of the test.
package access
