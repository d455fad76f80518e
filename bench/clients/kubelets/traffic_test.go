package kubelets

import (
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// traffic is the number of requests that the apiserver has seen.
type traffic map[asked]int

// asked is a kind of request.
type asked struct {
	kubelet bool   // or a proxy
	what    string // verb, resource and subresource, and whether it failed
}

// traffic reads the audit log. It counts the requests of kubelets, which proxies forward with the
// kubelets' own identities, and those of proxies.
func (w *world) traffic(t *testing.T) traffic {
	t.Helper()
	seen := traffic{}
	for _, r := range w.audit.PeekT(t) {
		user := r.Effective().Username
		kubelet := strings.HasPrefix(user, "system:node:")
		if user != proxyUser && !kubelet || !counts(r) {
			continue
		}
		what := r.Verb + " " + r.ObjectRef.Resource
		switch {
		case r.ObjectRef.Resource == "":
			what = r.Verb + " (other paths)"
		case r.ObjectRef.Subresource != "":
			what += "/" + r.ObjectRef.Subresource
		}
		if r.ResponseStatus.Code >= 400 {
			what += ", failed"
		}
		seen[asked{kubelet, what}]++
	}
	return seen
}

// counts reports whether a record is the one by which its request is counted: for a watch at its
// start, otherwise at its end.
func counts(r cluster.AuditRecord) bool {
	if r.Verb == "watch" && r.ResponseStatus.Code < 400 {
		return r.Stage == "ResponseStarted"
	}
	return r.Stage == "ResponseComplete"
}

// check demands that the proxies have answered the kubelets' watches, each from one watch of its
// own, and that a node's proxy has asked for no other node's pods.
func (w *world) check(t *testing.T, r road, seen traffic) {
	t.Helper()
	for _, resource := range []string{"pods", "nodes", "services"} {
		what := "watch " + resource
		kubelets, proxies := seen[asked{true, what}], seen[asked{false, what}]
		switch {
		case r == direct && kubelets < len(w.kubelets):
			t.Errorf("%s: %d, of %d kubelets", what, kubelets, len(w.kubelets))
		case r != direct && (kubelets != 0 || proxies != len(w.proxies)):
			t.Errorf("%s: kubelets %d, proxies %d, of %d proxies", what, kubelets, proxies, len(w.proxies))
		}
		for i, p := range w.proxies {
			if n := int(cached(t, p, cluster.Label("verb", "watch"), cluster.Label("resource", resource))); n < len(w.kubelets)/len(w.proxies) {
				t.Errorf("%s: %d from the caches of proxy %d", what, n, i)
			}
		}
	}
	for _, record := range w.audit.PeekT(t) {
		narrow := strings.Contains(record.RequestURI, "fieldSelector=spec.nodeName%3D")
		if r == perNode && record.Effective().Username == proxyUser && record.ObjectRef.Resource == "pods" && record.Verb != "get" && !narrow {
			t.Errorf("a node's proxy has asked for all pods: %s", record.RequestURI)
		}
	}
}

// others is the row for what proxies list and kubelets do not watch.
const others = "list (other resources)"

// table shows what the apiserver sees on each road.
func table(t *testing.T, seen map[road]traffic) string {
	t.Helper()
	rows := map[string]map[string]int{}
	roads := []road{direct, perNode, shared}
	columns := []string{"DIRECT", "NODE PROXIES: KUBELETS", "PROXIES", "ONE PROXY: KUBELETS", "PROXY"}
	for _, r := range roads {
		for kind, n := range seen[r] {
			what, column := kind.what, columns[max(0, 2*int(r)-1)]
			if !kind.kubelet {
				column = columns[2*int(r)]
			}
			if resource, list := strings.CutPrefix(what, "list "); list && seen[direct][asked{true, "watch " + resource}] == 0 {
				what = others
			}
			if rows[what] == nil {
				rows[what] = map[string]int{}
			}
			rows[what][column] += n
		}
	}
	commit, err := exec.CommandContext(t.Context(), "git", "-C", cluster.Root(), "describe", "--always", "--dirty").Output()
	cluster.MustT(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "make kubelets, %s, commit %s, %s/%s, %d processors.\n\n", time.Now().Format(time.DateOnly), strings.TrimSpace(string(commit)),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	fmt.Fprintf(&b, "Requests of %d kubelets at the apiserver, directly or forwarded, and of their proxies, for a Deployment of %d pods:\n", *count, *count*podsPerNode)
	fmt.Fprint(&b, "created, its ConfigMap and Secret changed, rolled, deleted. Counts of gets and patches vary between runs.\n\n")
	out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "REQUEST\t"+strings.Join(columns, "\t")+"\t")
	for _, what := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprint(out, what+"\t")
		for _, c := range columns {
			fmt.Fprintf(out, "%d\t", rows[what][c])
		}
		fmt.Fprintln(out)
	}
	out.Flush()
	return b.String()
}
