package conformance

import (
	"net/url"
	"testing"
)

// The apiserver answers requests with a shardSelector, because only it knows whether its feature gate
// ShardedListAndWatch is on. Here the gate is off.
func TestShardSelectors(t *testing.T) {
	for _, c := range []*collection{configMaps, widgets, coreEvents} {
		t.Run(c.name, func(t *testing.T) { check(t, sharded(c, "a-b", "")) })
	}
}

// sharded returns lists, pages and watches of a namespace with a shardSelector. Lists of the shard
// contain a text.
func sharded(c *collection, namespace, says string) []row {
	lower := "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')")
	state, collection := SomeState(0), c.in(namespace)+"?"
	list := func(name, query string, status int, says string) row {
		return row{name: name, request: get(c.expand(collection + query)), status: status, from: upstream, open: state, says: says}
	}
	return []row{
		list("list", lower, 200, says),
		list("list of any state", lower+"&resourceVersion=0", 200, says),
		list("list of an exact state", lower+"&resourceVersion=$N&resourceVersionMatch=Exact", 200, says),
		list("page", lower+"&limit=1", 200, says),
		list("list by a label", lower+"&labelSelector=app%3Dweb", 200, says),
		list("list with an empty selector", "shardSelector=", 200, ""),
		list("list with a malformed selector", "resourceVersion=0&shardSelector=x", 0, ""),
		{name: "watch", request: get(c.expand(collection + "watch=true&resourceVersion=$N&timeoutSeconds=1&" + lower)), status: 200, from: upstream},
		{name: "watch with the state", request: get(collection + "watch=true&resourceVersion=0&timeoutSeconds=1&" + lower), status: 200, from: upstream},
	}
}
