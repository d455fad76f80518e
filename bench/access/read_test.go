package access

import (
	"flag"
	"net/url"
	"strings"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var everything = flag.Bool("everything", false, "ask for all of it, instead of a part that is drawn")

// drawn reports whether a question is asked. Without -everything, one in n is.
func drawn(n int, names ...string) bool { return *everything || cluster.Draw(n, names...) == 0 }

// read is a request that the cache can answer, or one that is very similar.
type read struct {
	name string
	request
	list     bool
	uncached bool // the cache cannot answer it
}

// form is an encoding of an answer.
type form struct{ name, object, list string }

const partial = ";v=v1;g=meta.k8s.io;as=PartialObjectMetadata"

var forms = []form{
	{"protobuf", protobuf + ",application/json", protobuf + ",application/json"},
	{"metadata", "application/json" + partial + ",application/json", "application/json" + partial + "List,application/json"},
	{"metadata in protobuf", protobuf + partial + ",application/json", protobuf + partial + "List,application/json"},
}

// in returns the read in another form.
func (r read) in(f form) read {
	r.name += ", " + f.name
	if r.accept = f.object; r.list && !r.watches {
		r.accept = f.list
	}
	return r
}

// collection is all objects of a resource, or all its objects in a namespace.
type collection struct {
	path      string
	name      string // the name of an object in the collection
	selectors []string
	// token continues a list after its first object.
	token string
}

// collections returns the collections that the matrix reads.
func collections() (all []*collection) {
	const name, label = "fieldSelector=metadata.name%3D", "labelSelector=app%3Dweb"
	for _, resource := range []struct{ root, name string }{
		{"/api/v1", "/pods"},
		{"/api/v1", "/configmaps"},
		{"/apis/" + widgets.Group + "/v1", "/widgets"},
	} {
		for _, namespace := range []string{"", "/namespaces/" + teamA, "/namespaces/" + teamB} {
			c := &collection{path: resource.root + namespace + resource.name, name: "one", selectors: []string{"", name + "one", label}}
			if resource.name == "/pods" {
				c.selectors = append(c.selectors,
					"fieldSelector=spec.nodeName%3Dn1", "fieldSelector=spec.nodeName%3Dn2", "fieldSelector=spec.nodeName%3Dn1,metadata.name%3Done",
					"fieldSelector=spec.nodeName%3Dn1&labelSelector=app%3Dweb")
			}
			all = append(all, c)
		}
	}
	return append(all,
		&collection{path: "/api/v1/namespaces", name: teamA, selectors: []string{"", name + teamA, label}},
		&collection{path: "/api/v1/nodes", name: "n1", selectors: []string{"", name + "n1", name + "n2", label}})
}

// watchWithState is the query of a watch that begins with the state. It is read until the state is
// complete.
const watchWithState = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"

// reads returns all reads of a collection in JSON. Watches begin at the resourceVersion since.
func (c *collection) reads(since string) (all []read) {
	for _, selector := range c.selectors {
		for _, kind := range []struct {
			name, query string
			watches     bool
		}{
			{"list at 0", "resourceVersion=0", false},
			{"list", "", false},
			{"list at N", "resourceVersion=" + since, false},
			{"page", "limit=1", false},
			{"next page", "limit=1&continue=" + url.QueryEscape(c.token), false},
			{"exact list", "resourceVersionMatch=Exact&resourceVersion=" + since, false},
			{"watch at N", "watch=1&timeoutSeconds=1&resourceVersion=" + since, true},
			{"watch", "watch=true&timeoutSeconds=1", true},
			{"watch with state", watchWithState, true},
			{"watch with state at N", watchWithState + "&resourceVersion=" + since, true},
		} {
			target := c.path + "?" + strings.Trim(kind.query+"&"+selector, "&")
			all = append(all, read{name: kind.name, list: true, request: request{target: target, watches: kind.watches}})
		}
	}
	if strings.Count(c.path, "/namespaces/") == 0 && !strings.HasSuffix(c.path, "/namespaces") && !strings.HasSuffix(c.path, "/nodes") {
		return all // objects have a namespace
	}
	for _, name := range []string{c.name, "two", "missing"} {
		for _, version := range []string{"0", since} {
			all = append(all, read{name: "get", request: request{target: c.path + "/" + name + "?resourceVersion=" + version}})
		}
	}
	return all
}

// oddReads are reads whose authorization depends on how the server parses them.
func oddReads() (all []read) {
	const (
		withState = "&" + watchWithState
		local     = "/api/v1/namespaces/" + teamA + "/pods"
	)
	for _, query := range []string{
		"fieldSelector=spec.nodeName%3Dn1&fieldSelector=spec.nodeName%3Dn2",
		"fieldSelector=spec.nodeName%3Dn2&fieldSelector=spec.nodeName%3Dn1",
		"fieldSelector=&fieldSelector=spec.nodeName%3Dn1",
		"fieldSelector=spec.nodeName%3Dn1&fieldSelector=",
		"fieldSelector=spec.nodeName%3D%3Dn1",
		"fieldSelector=spec.nodeName!%3Dn2",
		"fieldSelector=spec.nodeName%3Dn1,spec.nodeName%3Dn2",
		"fieldSelector=spec.nodeName%3Dn1,status.phase%3DPending",
		"fieldSelector=spec.nodeName",
		"fieldSelector=no.such%3Dn1,spec.nodeName%3Dn1",
		"fieldSelector=metadata.name%3Done,metadata.name%3Dtwo",
		"fieldSelector=metadata.name%3Dtwo,metadata.name%3Done",
		"fieldSelector=metadata.name!%3Done",
		"fieldSelector=metadata.name%3D",
		"fieldSelector=metadata.name%3Done%2Ftwo",
		"fieldSelector=metadata.namespace%3D" + teamA,
		"fieldSelector=metadata.name%3Done&fieldSelector=metadata.name%3Dtwo",
		"fieldSelector=metadata.name%3Dtwo&fieldSelector=metadata.name%3Done",
		"FieldSelector=metadata.name%3Done",
		"labelSelector=app+in+(web,db)",
		"labelSelector=app+in+(",
		"labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3Dn1",
		"namespace=" + teamA,
		"name=one",
	} {
		for _, path := range []string{"/api/v1/pods", local, "/api/v1/namespaces/" + teamB + "/pods"} {
			all = append(all,
				read{name: "odd list", list: true, request: request{target: path + "?resourceVersion=0&" + query}},
				read{name: "odd watch", list: true, request: request{target: path + "?" + query + withState, watches: true}})
		}
	}
	for _, target := range []string{
		local + "/one?watch=1&resourceVersion=0",
		local + "/one?fieldSelector=metadata.name%3Dtwo&resourceVersion=0",
		local + "/?resourceVersion=0",
		local + "/one/?resourceVersion=0",
		local + "//one?resourceVersion=0",
		"/api/v1/namespaces//pods?resourceVersion=0",
		"/api/v1/namespaces/" + teamA + "/%70ods?resourceVersion=0",
		"/api/v1/namespaces/" + teamB + "/../" + teamA + "/pods?resourceVersion=0",
		"/api/v1/namespaces/" + teamA + "%2Fpods?resourceVersion=0",
		"/api/v1/namespaces/" + teamA + "/pods%2Fone?resourceVersion=0",
		"/api/v1/namespaces/" + teamA + "/status?resourceVersion=0",
		local + "/one/status?resourceVersion=0",
		"/api/v1/watch/namespaces/" + teamA + "/pods?timeoutSeconds=1&resourceVersion=0",
		"/api/v1/watch/namespaces/" + teamA + "/pods/one?timeoutSeconds=1&resourceVersion=0",
	} {
		all = append(all, read{name: "odd path", uncached: true, request: request{target: target, watches: strings.Contains(target, "timeoutSeconds")}})
	}
	return append(all,
		read{name: "head", uncached: true, request: request{method: "HEAD", target: local + "/one?resourceVersion=0"}},
		read{name: "head", uncached: true, request: request{method: "HEAD", target: local + "?resourceVersion=0"}})
}
