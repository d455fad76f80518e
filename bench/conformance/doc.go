// Package conformance checks watchproxy's first promise: all responses are right. Its tests run the
// real proxy in front of a real kube-apiserver, send the same requests to both, and compare the
// responses.
//
// # The differential suite
//
// The suite is a table of requests. Each request goes unchanged to both servers, without a client
// library. To the proxy, three of four requests use HTTP/2 and the others HTTP/1.1; -seed selects
// them. Each request is sent once for plain JSON, once for another form that the apiserver
// offers, and once in a view, in another form. -seed selects the forms and the view. Collections that
// resemble others get a third of the requests, which -seed selects, too. With -all-forms, all requests
// are sent, each for every form. Status, headers and body must be the same.
//
// The proxy has twelve views of each resource, ten of them with fields that -seed draws from the
// resource's objects. A plain implementation cuts the apiserver's response to the same request
// without the view (view.body, view.events). The proxy must show these bytes. Protobuf is compared after
// both are decoded. An event that changes none of a view's fields must be missing if the cache answers.
// No message may have a sentinel, a text that only some fields have, that the cut response does not have.
//
// Each row also says whether the proxy's response must come from its cache or from the apiserver.
// The proxy's access log must agree. So a row about the cache cannot pass because the proxy forwards
// the request.
//
// The comparison ignores only the possible differences between two responses of the apiserver
// itself:
//
//   - A list without an exact resourceVersion shows any state that is new enough. Its items must
//     be equal byte for byte. In its metadata, only the digits of resourceVersion may differ, also
//     inside the continue token. The resourceVersion must be at least the requested one, and a
//     token must contain the list's own resourceVersion.
//   - An exact page comes from the apiserver's cache or, some time later, from etcd. If the page
//     comes from the cache, the key in its continue token begins with a slash.
//   - "Too large resource version" and "too old resource version" name the limits of the server's
//     cache.
//   - Compressed bodies are compared after decompression. The proxy's body must not be larger
//     by more than 64 bytes.
//   - Since version 1.37, the apiserver compresses a watch that begins with the state, if the client
//     accepts gzip. So does the proxy, whose gzip members differ.
//   - Tables contain ages. In watches, any event may contain the column definitions.
//   - The server decides when to send a bookmark. The objects of two bookmarks must be equal except
//     for the digits of resourceVersion.
//
// All other bytes must be equal, including all rows about exact resourceVersions and continue
// tokens.
//
// # The validator
//
// [Check] compares the events that one watcher received, over all its connections, with the
// apiserver's own history of the same selection ([Reference]). It reports each error with the name
// of the broken [Guarantee]. Load and fault tests also use it.
package conformance
