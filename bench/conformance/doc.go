// Package conformance checks watchproxy's first promise: never a wrong answer. Its tests run the
// real proxy in front of a real kube-apiserver, send both the same requests, and compare the
// answers.
//
// # The differential suite
//
// The suite is a [testing.T] table of requests. Each request goes to both servers as it is, without a
// client library. To the proxy, -seed draws HTTP/2 for three of four requests and HTTP/1.1 for the
// others. Each request asks for plain JSON, and for the other forms that the apiserver offers: for
// one form that -seed picks, or for all (-all-forms). Status, headers and body must be the same.
//
// Each row also says where the proxy's answer must come from, its cache or the apiserver. The
// proxy's own metrics must agree. So a row about the cache cannot pass because the proxy forwards
// the request.
//
// The comparison ignores only what can differ between two answers of the apiserver itself:
//
//   - A list without an exact resourceVersion shows some state that is new enough. Its items must be
//     equal byte for byte. Of its metadata, only the digits of resourceVersion may differ, there and
//     inside the continue token. Both must be at least the requested resourceVersion, and a token must
//     carry the list's own resourceVersion.
//   - An exact page comes from the apiserver's cache or, some time later, from etcd. The key in its
//     continue token begins with a slash if the page comes from the cache.
//   - "Too large resource version" and "too old resource version" name the limits of the server's
//     cache.
//   - Compressed bodies are compared after decompression. The proxy's body must not be larger.
//   - Tables contain ages. In watches, any event may carry the definitions of the columns.
//   - The server decides when to send a bookmark. The objects of two bookmarks must be equal except
//     for the digits of resourceVersion.
//
// Everything else is compared byte for byte, including all rows about exact resourceVersions and
// continue tokens.
//
// # The validator
//
// [Check] compares what one watcher saw, over all its connections, with what the apiserver says
// about the same selection ([Reference]). It reports each error with the name of the broken
// [Guarantee]. Load and fault tests can use it as well.
package conformance
