// Package conformance holds watchproxy to its first promise: never a wrong answer. Its tests run the real proxy in front
// of a real kube-apiserver, ask both the same, and compare.
//
// # The differential suite
//
// A [testing.T] table of requests, each sent to both servers as it stands, over HTTP/1.1 or HTTP/2 and without any client
// library in between: in plain JSON and in the other forms that the apiserver offers, one that -seed picks or
// all (-all-forms). Status, headers and body must be the same. Each row also says where the proxy's answer has to come from,
// its cache or the apiserver, and the proxy's own metrics have to agree: a row about the cache cannot pass because the
// request was forwarded.
//
// What the contract leaves open is what two answers of the apiserver itself could differ in, and no more:
//
//   - A list that asks for no exact resourceVersion shows some state that is new enough. Its items must be equal byte
//     for byte; of its metadata, only the digits of resourceVersion may differ, there and inside the continue token. Both
//     must be at least what was asked for, and a token must carry the list's own.
//   - An exact page comes from the apiserver's cache or, some time later, from etcd. Whether the key in its continue token
//     begins with a slash tells which.
//   - "Too large resource version" and "too old resource version" tell how far the server's cache reaches.
//   - Compressed bodies are compared after decompression; the proxy's must not be larger.
//   - Tables tell ages, and in watches the definitions of their columns with any event.
//   - A bookmark comes when the server likes. Its object must be equal but for the digits of resourceVersion.
//
// Everything else is compared byte for byte. All rows about exact resourceVersions and continue tokens are.
//
// # The validator
//
// [Check] holds what one watcher saw, over all its connections, against what the apiserver tells of the same selection
// ([Reference]). What it finds wrong it reports by the name of the [Guarantee] that was broken. Load and fault tests can
// use it as well.
package conformance
