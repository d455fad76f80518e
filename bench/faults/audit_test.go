package faults

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// audit tells from the apiserver's audit log what it was asked for, by whom.
type audit struct {
	cluster.AuditLog
	// open are the watches of some resources that have begun and not ended, by id.
	open    map[string]string
	earlier asked
}

// asked is what the apiserver was asked for of the followed resources.
type asked struct {
	probes    int // lists and watches that match nothing
	lists     int // with objects, or with their metadata
	syncs     int // watches that begin with the state
	watches   int // others
	forwarded int // requests of informers, of any kind
}

// since tells what was asked since the last time.
func (a *audit) since(t *testing.T) (sum asked) {
	t.Helper()
	sum, a.earlier = a.earlier, asked{}
	for _, r := range a.NextT(t) {
		a.count(&sum, r)
	}
	return sum
}

// ended notes that the apiserver has ended, with or without saying of each watch that it has.
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

// feedAgent is what the proxy's feeds call themselves.
const feedAgent = "watchproxy"
