// Package clients holds watchproxy to what its clients know of an apiserver. Real clients talk to the
// real binary, and that talks to a real kube-apiserver.
//
// The package is the library of its subpackages (World, Watch, Run), and it has the tests of informers
// and watches. The subpackages test one kind of client or of event each: kubectl, commandline
// (watchproxy's own commands, and those of the README), wire (HTTP/1.1, HTTP/2, TLS, limits), outage
// (the apiserver or the proxy goes away), and linearizability.
//
// The tests do the same through the proxy and at the apiserver. Then they compare the output, the exit
// code, and what is stored. Some promises are the proxy's alone: a thousand watches are one watch
// upstream, and they outlive a crash of the apiserver.
//
// There is no node. A Node object points the apiserver to a kubelet of the test's own, which runs the
// commands of kubectl exec as processes of this machine.
//
// Proxies are built with the race detector, linearizability's excepted. A race or a panic in a proxy's
// log fails the test that started it.
package clients
