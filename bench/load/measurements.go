package main

import (
	"context"
	"net/http"
	"net/url"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// measurement is measured at the servers in turn.
type measurement struct {
	group, name string
	measure     func(context.Context, *server) (sample, error)
	figures     []figure
	// floor and proxies limit the servers: only some measurements have a floor, and some only
	// compare proxies.
	floor, proxies bool
}

// measurements is all that the bench measures.
func (b *bench) measurements() []measurement {
	pod := workload.NewPod(0)
	namespace := "/api/v1/namespaces/" + pod.Namespace + "/pods"
	byLabel := "labelSelector=" + url.QueryEscape("app.kubernetes.io/name=api,app.kubernetes.io/part-of in (ads,mail)")
	path := func(paths ...string) request { return request{paths: paths} }
	as := func(accept string, r request) request { r.accept = accept; return r }
	one, two, zipped := road{http1: true}, road{}, road{gzip: true}

	cost, costOnWire := []figure{cpu, upstream}, []figure{cpu, wire}
	delivery, latency := []figure{cpu, wire, p50, p99}, []figure{cpu, p50, p99}
	const some, crowd, herd = 4, 16, 100
	get := request{paths: []string{namespace + "/" + pod.Name}, forwarded: true}
	create := request{
		paths: []string{"/api/v1/namespaces/default/configmaps?dryRun=All"}, method: http.MethodPost, forwarded: true,
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bench"},"data":{"a":"b"}}`,
	}
	const firstPage = "/api/v1/pods?limit=500"
	listed := request{paths: allPods.paths, take: decodePods}
	tablePage := request{paths: []string{firstPage}, accept: table, take: decodeTable}
	sync := path("/api/v1/pods?" + withState)
	sync.take = state
	decoded := request{paths: sync.paths, take: decodeState}
	syncOne := request{paths: []string{namespace + "?" + withState}, take: state}
	return []measurement{
		{"events", "HTTP/2, a connection for each watch", b.events(two), delivery, true, false},
		{"events", "HTTP/2, gzip, watches with the state", b.events(zipped), delivery, false, false},
		{"events", "HTTP/2, 100 watches on a connection", b.events(road{shared: 100}), delivery, true, false},
		{"events", "HTTP/1.1", b.events(one), delivery, true, false},

		{"lists", "all pods", b.reads(some, two, allPods), costOnWire, true, false},
		{"lists", "all pods, gzip", b.reads(some, zipped, allPods), costOnWire, true, false},
		{"lists", "all pods, gzip, clients that decode", b.reads(some, zipped, listed), costOnWire, true, false},
		{"lists", "all pods, protobuf", b.reads(some, two, as(protobuf, allPods)), costOnWire, true, false},
		{"lists", "all pods, HTTP/1.1", b.reads(some, one, allPods), costOnWire, true, false},
		{"lists", "a namespace, most recent", b.reads(some, two, path(namespace)), cost, true, false},
		{"lists", "by a label, 1 %", b.reads(some, two, path("/api/v1/pods?resourceVersion=0&"+byLabel)), cost, true, false},
		{"lists", "get at resourceVersion=0", b.reads(some, two, path(namespace+"/"+pod.Name+"?resourceVersion=0")), cost, true, false},

		{"pages", "500 pods, most recent", b.reads(some, two, path(firstPage)), cost, true, false},
		{"pages", "all pages in turn, gzip", b.reads(some, zipped, request{paths: []string{firstPage}, pages: true}), cost, true, false},

		{"tables", "page of 500 pods, most recent, gzip", b.reads(some, zipped, as(table, path(firstPage))), costOnWire, true, false},
		{"tables", "the same, clients that decode", b.reads(some, zipped, tablePage), costOnWire, true, false},
		{"tables", "by a label, 1 %, gzip", b.reads(some, zipped, as(table, path("/api/v1/pods?"+byLabel))), cost, true, false},

		{"syncs", "all pods", b.reads(1, two, sync), delivery, false, false},
		{"syncs", "all pods, gzip", b.reads(1, zipped, sync), delivery, false, false},
		{"syncs", "16 clients at a time that decode", b.reads(crowd, two, decoded), latency, false, false},
		{"syncs", "a namespace, 100 clients at a time", b.reads(herd, two, syncOne), []figure{cpu, upstream, p50, p99}, false, false},

		{"forward", "get", b.reads(1, two, get), []figure{cpu, p50, p99, added}, true, false},
		{"forward", "create, dry run", b.reads(1, two, create), []figure{cpu, p50, p99, added}, true, false},

		{"memory", "idle proxy", b.idle, []figure{memory}, false, true},
		{"memory", "all pods, at rest", b.atRest, []figure{memory}, false, false},
		{"memory", "lists by 16 clients, peak", b.underLists, []figure{memory}, false, false},
		{"memory", "idle watch, HTTP/2", b.idleWatches(two), []figure{memory}, false, false},
		{"memory", "idle watch, HTTP/2, 100 on a connection", b.idleWatches(road{shared: 100}), []figure{memory}, false, false},
		{"memory", "idle watch, HTTP/1.1", b.idleWatches(one), []figure{memory}, false, false},

		{"cold", "from the start until all pods are cached", b.cold, []figure{cpu, p50, memory}, false, true},
	}
}
