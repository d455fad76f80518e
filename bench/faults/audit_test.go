package faults

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// audit reads the apiserver's audit log and counts its requests by client.
type audit struct {
	cluster.AuditLog
	// open holds the open watches of the followed resources, by audit id.
	open    map[string]string
	earlier asked
}

// asked counts the apiserver's requests for the followed resources.
type asked struct {
	probes    int // lists and watches that match nothing
	lists     int // with objects, or with their metadata
	syncs     int // watches that begin with the initial state
	watches   int // others
	forwarded int // requests of informers, of any kind
}

// since returns the requests since the last call.
func (a *audit) since(t *testing.T) (sum asked) {
	t.Helper()
	sum, a.earlier = a.earlier, asked{}
	for _, r := range a.NextT(t) {
		a.count(&sum, r)
	}
	return sum
}

// ended clears the open watches, because the apiserver has ended. It may not have logged the end of
// each watch.
func (a *audit) ended(t *testing.T) {
	t.Helper()
	a.earlier = a.since(t)
	clear(a.open)
}

func (a *audit) count(sum *asked, r cluster.AuditRecord) {
	of := schema.GroupResource{Group: r.ObjectRef.APIGroup, Resource: r.ObjectRef.Resource}
	ours := slices.ContainsFunc(followed, func(r resource) bool { return r.GroupResource() == of })
	if !ours || r.UserAgent != feedAgent && r.UserAgent != fleetAgent {
		return
	}
	watch := r.Verb == "watch"
	if watch && r.Stage == "ResponseComplete" {
		delete(a.open, r.AuditID)
		return
	}
	if watch {
		a.open[r.AuditID] = of.String()
	}
	switch {
	case r.UserAgent == fleetAgent:
		sum.forwarded++
	case strings.Contains(r.RequestURI, "/namespaces/watchproxy.none/"):
		sum.probes++
	case watch && strings.Contains(r.RequestURI, "sendInitialEvents=true"):
		sum.syncs++
	case watch:
		sum.watches++
	case r.Verb == "list":
		sum.lists++
	}
}

// feedAgent is the user agent of the proxy's feeds.
const feedAgent = "watchproxy"
