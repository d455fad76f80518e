// Package clients holds watchproxy to what its clients know of an apiserver. Its tests put real ones in front of the
// real binary, which stands in front of a real kube-apiserver: kubectl, client-go's informers, a thousand watches on
// bare connections.
//
// What a client does through the proxy it does against the apiserver, too, and the two outcomes are compared: output,
// exit code, and what is stored afterwards. Where the proxy promises more than the apiserver, that is what the tests
// claim: a thousand watches are one watch upstream, and those watches outlive the apiserver's crash.
//
// There is no node. A Node object points the apiserver to a kubelet of the test's own, which runs the commands of
// kubectl exec as processes of this machine.
//
// Consistent reads are put to a test of their own, TestLinearizable, in which the proxy's watches come late; `make
// linearizability` runs it for longer. It counts what it reads, so its proxy has the race detector only if the test has.
// All others are built with it, and a race or a panic in a proxy's log fails the test that started it.
package clients
