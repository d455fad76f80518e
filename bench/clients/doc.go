// Package clients tests that watchproxy behaves towards its clients as an apiserver does. Real
// clients talk to the real binary, and the binary talks to a real kube-apiserver.
//
// The package is the library of its subpackages (World, Watch, Run), and it has the tests of
// informers and watches. Each subpackage tests one kind of client or event: kubectl, commandline
// (watchproxy's own commands, and those of the README), wire (HTTP/1.1, HTTP/2, TLS, limits),
// outage (the apiserver or the proxy goes away), and linearizability.
//
// The tests do the same through the proxy and at the apiserver. Then they compare the output, the
// exit code, and what is stored. The proxy makes two more promises: a thousand watches are one
// watch upstream, and they outlive a crash of the apiserver.
//
// There is no real node. A Node object points the apiserver to the test's own kubelet. This kubelet
// runs the commands of kubectl exec as processes on this machine.
//
// Proxies are built with the race detector, except in linearizability. A race or a panic in a
// proxy's log fails the test that started it.
package clients
