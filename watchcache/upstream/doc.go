// Package upstream manages the feeds. There is one list+watch loop per resource, regardless of the
// number of clients.
//
// [Feeds] starts feeds on first use and returns their caches. Its feedSet remembers for a while
// which resources cannot be cached, and stops idle feeds. The first client that requests a resource
// in protobuf starts a second feed for it. Custom resources have no protobuf form: upstream
// responds with 406 (object.ErrNoEncoding).
//
// Each of these packages imports some of the packages listed after it:
//
//   - fresh: proves that caches are up to date, and records which resource was written at which
//     revision of etcd
//   - feed: the loop that keeps one cache up to date with upstream
//   - discovery: upstream's resources, and changes of CustomResourceDefinitions and APIServices
//   - client: requests to the apiservers and their responses, and the choice between apiservers
//
// # What upstream sees
//
// All feeds share discovery, whose documents are used for two seconds. Only resources in discovery
// get a feed.
//
// Each feed sends one probe and one watch, and one more probe before it resumes a broken watch. The
// probe is a list that matches nothing. Its resourceVersion comes from a linearizable read. Even an
// empty list distinguishes built-in types from custom resources (see client.Probe).
//
// Normally, the watch itself delivers the initial state (sendInitialEvents), so no list is needed.
// If upstream refuses sendInitialEvents (422), the feed lists in pages. Kube-apiserver 1.33 with
// its feature WatchList refuses it for Tables only (406).
//
// A consistent read costs a probe, and the requests that bring the cache to the probe's revision.
// All concurrent readers share these requests. A budget limits the probes of all resources
// together. A custom resource also costs one read of its definition. One watch of the definitions'
// metadata and one of the APIServices serve all custom resources.
package upstream
