// Package shards checks lists and watches with a shardSelector, which select objects by a hash of
// their uid or their namespace. Two real kube-apiservers share one etcd. Only the first has the
// feature gate ShardedListAndWatch. The other one ignores the selectors. Each has a proxy in front
// of it.
//
//   - TestReads compares lists: those of each proxy with its apiserver's, and those of a view with
//     shards: always with the first apiserver's, although the proxy has the other one. TestRefused
//     does so for bad selectors.
//   - TestWatches compares the events of watches in the same way.
//   - TestChurn follows eight disjoint shares with informers while objects change.
//   - TestNeverForwarded checks that no selector in the view reaches the apiserver, which would
//     ignore it.
//   - TestCut, TestResources and TestAllowed check views that also do something else.
//
// The selectors have random ranges and spellings.
package shards
