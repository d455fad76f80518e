// Package upstream keeps the set of feeds: one list+watch loop per resource, however many clients
// read.
//
// [Feeds] starts feeds on first use, hands out their caches, remembers for a while what cannot be
// cached, and stops idle feeds. The first client that asks for a resource in protobuf starts a
// second feed for it. Custom resources have no protobuf form: upstream answers 406, and
// object.ErrNoEncoding is remembered for a while.
//
// Each of these packages imports some of the packages listed after it:
//
//   - fresh: shows that caches are up to date
//   - feed: the loop that keeps one cache in step
//   - store: saved caches
//   - discovery: what upstream serves, and changes of a CustomResourceDefinition
//   - servers: several apiservers, and what happens while none answers
//   - client: requests to an apiserver and its answers
//   - ledger: which resource used which revision of etcd
//
// # What upstream sees
//
// Discovery is shared: the list of groups, and one document per group and version. One request
// at a time reads each of them, and the answer holds for two seconds. Only resources that
// discovery lists get a feed.
//
// Each feed sends one probe and one watch, and one more probe before it resumes a broken watch. The
// probe is a list that matches nothing. Its resourceVersion comes from a linearizable read. The
// form of its body tells built-in types (kind first, list items without kind) from custom resources
// (sorted keys, items with kind); an empty list shows that as well as a full one.
//
// A sync reads the state through the watch itself (sendInitialEvents), so it needs no list.
// Where upstream refuses that (422), the feed lists by pages.
//
// A consistent read costs a probe and whatever the cache needs to catch up with that probe. All
// concurrent readers share both. A budget bounds the probes of all resources. A custom resource
// also costs one read of its definition; all of them share one watch of the definitions' metadata.
package upstream
