package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// listForms are the ways to list a collection. $N is a resourceVersion from a write to the
// collection, $PAST an earlier resourceVersion, and $NAME the name of one of its objects.
var listForms = []struct {
	name, query string
	from        source
	exact       bool
}{
	{"any", "resourceVersion=0", cache, false},
	{"any, said twice over", "resourceVersion=0&resourceVersionMatch=NotOlderThan", cache, false},
	{"any ignores a limit if cached", "resourceVersion=0&limit=2", ifCached, false},
	{"any not older ignores a limit if cached", "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=2", ifCached, false},
	{"not older", "resourceVersion=$N", cache, false},
	{"not older, by match", "resourceVersion=$N&resourceVersionMatch=NotOlderThan", cache, false},
	{"not older, a page", "resourceVersion=$N&resourceVersionMatch=NotOlderThan&limit=2", cache, false},
	{"not older than long ago", "resourceVersion=1", cache, false},
	{"exact", "resourceVersion=$N&resourceVersionMatch=Exact", cache, true},
	{"exact, earlier", "resourceVersion=$PAST&resourceVersionMatch=Exact", cache, true},
	{"exact, between two writes", "resourceVersion=$PAST.5&resourceVersionMatch=Exact", cache, true},
	{"exact, a page", "resourceVersion=$N&limit=2", cache, true},
	{"exact, a page by match", "resourceVersion=$N&resourceVersionMatch=Exact&limit=1", cache, true},
	{"exact, an earlier page", "resourceVersion=$PAST&limit=2", cache, true},
	{"exact, a page as large as the collection", "resourceVersion=$N&limit=100000", cache, true},
	{"exact, before the proxy followed", "resourceVersion=$OLD&resourceVersionMatch=Exact", upstream, true},
	{"most recent", "", ifCached, false},
	{"most recent, said with an empty resourceVersion", "resourceVersion=", ifCached, false},
	{"most recent, a page", "limit=2", ifCached, false},
	{"most recent, a page as large as the collection", "limit=100000", ifCached, false},
	{"most recent, a negative limit", "limit=-1", ifCached, false},
	{"most recent, one by name", "fieldSelector=metadata.name=$NAME", ifCached, false},
	{"most recent, none by name", "fieldSelector=metadata.name=nobody", ifCached, false},
	{"most recent, all but one", "fieldSelector=metadata.name!=$NAME", ifCached, false},
	// Upstream answers if the page is full.
	{"most recent, all but one, a page", "limit=1&fieldSelector=metadata.name!=$NAME", anywhere, false},
	{"most recent, all but one, a page that is not full", "limit=100000&fieldSelector=metadata.name!=$NAME", ifCached, false},
	{"most recent, one by name, a page", "limit=500&fieldSelector=metadata.name=$NAME", ifCached, false},
	{"most recent, by label", "labelSelector=app%3Dweb", ifCached, false},
	{"most recent, by label, a page", "limit=1&labelSelector=app%3Dweb", ifCached, false},
	{"most recent, none by label", "labelSelector=app%3Dnobody", ifCached, false},
	{"most recent, within a time", "timeout=20s", ifCached, false},
	{"one by name", "resourceVersion=0&fieldSelector=metadata.name=$NAME", cache, false},
	{"one by name, not older", "resourceVersion=$N&fieldSelector=metadata.name%3D$NAME", cache, false},
	{"none by name", "resourceVersion=$N&fieldSelector=metadata.name=nobody", cache, false},
	{"all but one", "resourceVersion=$N&fieldSelector=metadata.name!=$NAME", cache, false},
	{"all but one, exact", "resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=metadata.name!=$NAME", cache, true},
	{"by label", "resourceVersion=$N&labelSelector=app%3Dweb", cache, false},
	{"by label, exact page", "resourceVersion=$N&limit=1&labelSelector=app%3Dweb", cache, true},
	{"none by label", "resourceVersion=$N&labelSelector=app%3Dnobody", cache, false},
}

func TestLists(t *testing.T) {
	for _, c := range collections {
		t.Run(c.name, func(t *testing.T) {
			rows := listRows(c, "", c.all())
			if c.namespaced {
				rows = append(rows, listRows(c, " in a namespace", c.in("a"))...)
			}
			check(t, rows)
		})
	}
}

// A list of a single name is a lookup of one key. The apiserver reads etcd for it in more cases
// than for other lists.
func TestListsOfOne(t *testing.T) {
	for _, c := range samples {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range []struct {
				name, query string
				from        source
				exact       bool
			}{
				{"any", "resourceVersion=0", cache, false},
				{"any, with a limit", "resourceVersion=0&limit=1", ifCached, false},
				{"not older", "resourceVersion=$N", cache, false},
				{"not older, by match", "resourceVersion=$N&resourceVersionMatch=NotOlderThan", cache, false},
				{"not older, a page", "resourceVersion=$N&resourceVersionMatch=NotOlderThan&limit=1", upstream, false},
				{"a page", "resourceVersion=$N&limit=1", upstream, false},
				{"exact", "resourceVersion=$N&resourceVersionMatch=Exact", upstream, true},
				{"exact, earlier", "resourceVersion=$PAST&resourceVersionMatch=Exact", upstream, true},
				{"exact, a page", "resourceVersion=$N&resourceVersionMatch=Exact&limit=1", upstream, true},
				{"most recent", "", ifCached, false},
				{"most recent, a page", "limit=1", ifCached, false},
				{"by label too", "resourceVersion=$N&labelSelector=app%3Dnobody", cache, false},
			} {
				for _, name := range []string{c.one, "nobody"} {
					r := row{name: f.name + ", " + name, status: 200, from: c.source(f.from)}
					r.request = get(c.expand(c.in("a") + "?fieldSelector=metadata.name%3D" + name + "&" + f.query))
					if r.open = c.exact(); !f.exact {
						r.open = SomeState(c.now)
					}
					rows = append(rows, r)
				}
			}
			check(t, rows)
		})
	}
}

func listRows(c *collection, where, path string) (rows []row) {
	for _, f := range listForms {
		if c.spares(f.name + where) {
			continue
		}
		r := row{name: f.name + where, request: get(c.expand(path + "?" + f.query)), status: 200, from: c.source(f.from)}
		if r.open = c.exact(); !f.exact {
			r.open = SomeState(c.now)
			// The list of all namespaces contains the lease that the apiserver renews.
			r.moving = c == leases && path == c.all()
		}
		rows = append(rows, r)
	}
	return rows
}

// expand inserts resourceVersions and names into a target.
func (c *collection) expand(target string) string {
	return strings.NewReplacer(
		"$PAST.5", fmt.Sprint(c.past+1),
		"$PAST", fmt.Sprint(c.past),
		"$NAME", c.one,
		"$OLD", fmt.Sprint(old),
		"$N", fmt.Sprint(c.now),
	).Replace(target)
}
