// Package clients tests that watchproxy behaves like an apiserver for its clients. Real clients
// connect to the real binary, which connects to a real kube-apiserver.
//
// The package is the library of its subpackages (World, Watch, Run), and contains the tests of
// informers and watches. Each subpackage tests one kind of client or event: kubectl, commandline
// (watchproxy's own commands and the commands in the README), wire (HTTP/1.1, HTTP/2, TLS),
// outage (apiservers fail or cannot be reached), linearizability, and kubelets.
//
// The tests do the same through the proxy and directly at the apiserver. Then they compare the
// output, the exit code, and the stored objects. The proxy makes another promise: many watches cost
// upstream a single watch.
//
// There is no real node. A Node object makes the apiserver use the test's own kubelet. This kubelet
// runs the commands of kubectl exec as processes on this machine.
//
// Except in linearizability, proxies are built with the race detector. A race or a panic in a
// proxy's log fails the test that started the proxy.
package clients
