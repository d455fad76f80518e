package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// report has all measurements.
type report struct {
	Sync    []solo  `json:"sync"`
	Tiers   []tier  `json:"tiers"`
	Herd    []herd  `json:"herd"`
	Writes  int     `json:"otherWritesPerSecond"`
	IdleCPU float64 `json:"idleAPIServerCPU"` // cores
}

func (r *report) print(w io.Writer) {
	if len(r.Sync) > 0 {
		n := len(r.Sync[0].Direct)
		fmt.Fprintf(w, "\nTime until a client-go informer has synced, for %d informers at the apiserver and %d through the proxy in turn, with %d\n"+
			"writes/s to other resources. Requests to the apiserver: those of the %d direct informers, and those of the proxy for the other %d.\n\n",
			n, n, r.Writes, n, n)
		solosTable(r.Sync).Print(w)
	}
	if len(r.Tiers) > 0 {
		fmt.Fprintf(w, "\nDelay of an event by each further proxy: time after the event came to a watch one tier below. The lowest tier is the apiserver.\n\n")
		tiersTable(r.Tiers).Print(w)
	}
	if len(r.Herd) > 0 {
		fmt.Fprintf(w, "\nHerds that start within a second through a proxy with empty caches: time until all have synced, and requests to the apiserver\n"+
			"and processor time until then. Herds of up to %d are client-go's informers; members of larger herds do not decode. The\n"+
			"apiserver and etcd take %.2f s of processor time a second for themselves and the %d writes/s.\n\n",
			informersMax, r.IdleCPU, r.Writes)
		herdsTable(r.Herd).Print(w)
	}
}

func solosTable(rows []solo) *workload.Table {
	t := &workload.Table{Left: 2, Rows: [][]string{
		{"", "", "", "DIRECT", "DIRECT", "PROXY", "PROXY", "DIRECT", "PROXY", "PROXY", "PROXY", "PROXY", "PROXY", "PROXY"},
		{"COLLECTION", "RESOURCE", "UPDATES/S", "MEDIAN", "WORST", "MEDIAN", "WORST", "REQUESTS", "PROBES", "LISTS", "METADATA", "SIDE-WATCHES", "WATCHES", "FORWARDS"},
	}}
	for _, r := range rows {
		t.Add(r.Collection, r.Resource, fmt.Sprintf("%.0f", r.Updates),
			milliseconds(r.Direct.median()), milliseconds(r.Direct.worst()),
			milliseconds(r.Proxied.median()), milliseconds(r.Proxied.worst()),
			strconv.Itoa(len(r.Direct)), strconv.Itoa(r.Upstream.Probes), strconv.Itoa(r.Upstream.Lists),
			strconv.Itoa(r.Upstream.Metadata), strconv.Itoa(r.Upstream.SideWatches), strconv.Itoa(r.Upstream.Watches), strconv.Itoa(r.Upstream.Forwards))
	}
	return t
}

func herdsTable(rows []herd) *workload.Table {
	t := &workload.Table{Left: 2, Rows: [][]string{
		{"", "", "", "", "", "", "", "", "", "", "", "", "PROXY", "APISERVER"},
		{"COLLECTION", "RESOURCE", "INFORMERS", "SYNCED", "AFTER", "SYNCS", "PROBES", "LISTS", "METADATA", "SIDE-WATCHES", "FORWARDS", "REFUSED", "CPU", "CPU"},
	}}
	for _, r := range rows {
		t.Add(r.Collection, r.Resource, strconv.Itoa(r.Members), strconv.Itoa(r.Synced), seconds(r.Seconds),
			strconv.Itoa(r.Upstream.Watches), strconv.Itoa(r.Upstream.Probes), strconv.Itoa(r.Upstream.Lists),
			strconv.Itoa(r.Upstream.Metadata), strconv.Itoa(r.Upstream.SideWatches), strconv.Itoa(r.Upstream.Forwards), strconv.Itoa(r.Refused),
			seconds(r.ProxyCPU), seconds(r.APICPU))
	}
	return t
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

func seconds(s float64) string { return fmt.Sprintf("%.2f s", s) }
