// Package access compares watchproxy's access decisions with the apiserver's own. The proxies under
// test authenticate and authorize their clients, and have only the rights of config/rbac.yaml and
// config/rbac-impersonation.yaml.
//
// TestMatrix sends the same reads with the same credentials to the apiserver and to the proxy. It
// covers every kind of caller and every kind of cached read, with full and with empty caches. The
// two responses must be the same, allowed or refused.
//
// The other tests check properties that responses do not show: the identity with which a forwarded
// request arrives upstream, and a proxy that may not read some resource. With -tags verify they also
// check that removed rights end.
//
// Three of four requests use HTTP/2, the others HTTP/1.1. By default the matrix sends a part of its
// requests, chosen by -seed. With -everything it sends all requests: some 63,000 with full caches.
package access
