package metrics

import (
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// metricLabels returns group, version and resource. They are empty if a client may have made up the
// name. An apiserver that allows a page's origin answers OPTIONS for every path.
func metricLabels(rt exchange.Route, resp *exchange.Response) [3]string {
	if !rt.Resource || rt.Verb == "options" || resp.Source == exchange.FromProxy {
		return [3]string{}
	}
	if resp.Source == exchange.FromUpstream && resp.Status >= http.StatusMultipleChoices {
		return [3]string{}
	}
	resource := rt.GVR.Resource
	if rt.Subresource != "" {
		resource += "/" + rt.Subresource
	}
	labels := [3]string{rt.GVR.Group, rt.GVR.Version, resource}
	if all := strings.Join(labels[:], ""); len(all) > labelsMost || !utf8.ValidString(all) {
		return [3]string{} // not valid as labels
	}
	return labels
}

const (
	// labelsMost limits the total length of a resource's labels, in bytes. Real names are shorter.
	labelsMost = 512
	// namesMost limits the kinds of requests. Each has a histogram, which adds 6 KB to a scrape.
	namesMost = 4096
)

// names are the kinds of requests whose resources have labels. An aggregated API, such as external
// metrics, may answer for any name, with any verb. So all resources beyond namesMost share a label.
type names struct {
	mu struct {
		sync.RWMutex
		seen map[kind]*[3]string // copies, so that labels do not keep a request in memory
	}
}

// kind has the labels of a request's duration.
type kind struct {
	gvr                 [3]string
	verb, scope, source string
}

// admit returns the labels of a resource. If there are too many kinds, it returns empty labels.
func (n *names) admit(gvr [3]string, rt exchange.Route, source exchange.Source) [3]string {
	of := kind{gvr, rt.Verb, scope(rt, gvr), string(source)}
	n.mu.RLock()
	seen := n.mu.seen[of]
	n.mu.RUnlock()
	if seen != nil {
		return *seen
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.seen) >= namesMost {
		return [3]string{}
	}
	of.gvr = [3]string{strings.Clone(gvr[0]), strings.Clone(gvr[1]), strings.Clone(gvr[2])}
	n.mu.seen[of] = &of.gvr
	return of.gvr
}
