// Package upstream manages the feeds. There is one list+watch loop per resource, regardless of the
// number of clients.
//
// [Feeds] starts feeds on first use and hands out their caches. It remembers for a while which
// resources cannot be cached, and stops idle feeds. The first client that asks for a resource in
// protobuf starts a second feed for it. Custom resources have no protobuf form: upstream answers
// 406, and Feeds remembers object.ErrNoEncoding for a while.
//
// Each of these packages imports some of the packages listed after it:
//
//   - fresh: proves that caches are up to date
//   - feed: the loop that keeps one cache in step with upstream
//   - store: saved caches
//   - discovery: what upstream serves, and changes of a CustomResourceDefinition
//   - servers: the choice between several apiservers, and the order of feeds after an outage
//   - client: requests to an apiserver and its answers
//   - ledger: which resource used which revision of etcd
//
// # What upstream sees
//
// Discovery is shared by all feeds. It consists of the list of groups and one document per group
// and version. Each document has at most one read in flight, and its content is used for two
// seconds. Only resources that discovery lists get a feed.
//
// Each feed sends one probe and one watch, and one more probe before it resumes a broken watch. The
// probe is a list that matches nothing. Its resourceVersion comes from a linearizable read. Even an
// empty list tells built-in types (kind first, list items without kind) from custom resources
// (sorted keys, items with kind).
//
// Normally, the watch itself delivers the initial state (sendInitialEvents), so no list is needed.
// If upstream refuses that (422), the feed lists in pages.
//
// A consistent read costs a probe, and the requests that the cache needs to catch up with the
// probe's revision. All concurrent readers share these. A budget bounds the probes of all resources
// together. A custom resource also costs one read of its definition; one watch of the definitions'
// metadata serves all custom resources.
package upstream
