package exchange

import (
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// ErrDoubtful says that upstream must interpret a parameter.
var ErrDoubtful = errors.New("a parameter is left to upstream")

// Params are the query parameters that the cache understands. If a parameter is repeated, the first
// value counts.
type Params struct {
	Labels labels.Selector // nil selects everything
	Fields fields.Selector
	Watch  bool

	RV      uint64
	RVGiven bool // resourceVersion is set and not empty
	Match   string
	Limit   int64
	Token   string // the parameter continue

	Timeout time.Duration // the parameter timeout, 0 if not set

	RowObjects   bool // includeObject=Object: the rows of Tables have whole objects
	IncludeGiven bool

	Bookmarks     bool
	InitialEvents *bool
	WatchSeconds  int64 // timeoutSeconds, 0 if not set
}

// timeoutLeast is the shortest timeout of a read that the cache answers. Upstream may fail at a
// shorter timeout, while the cache would answer in time.
const timeoutLeast = 100 * time.Millisecond

// Parse reads a query. For unknown, malformed and doubtful parameters the error is ErrDoubtful.
func Parse(query string) (Params, error) {
	var p Params
	values, err := url.ParseQuery(query)
	if err != nil {
		return p, ErrDoubtful
	}
	for name, all := range values {
		if err := p.set(name, all[0]); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Want returns the selection of a read.
func (p *Params) Want(rt Route) object.Want {
	w := object.Want{
		Namespace: rt.Namespace,
		Name:      rt.Name,
		Fields:    p.Fields,
		Labels:    p.Labels,
	}
	if rt.IsNamespace() {
		w.Namespace = ""
	}
	return w
}

func (p *Params) set(name, value string) (err error) {
	switch name {
	case "labelSelector", "fieldSelector":
		err = p.selectBy(name, value)
	case "resourceVersion":
		if p.RVGiven = value != ""; p.RVGiven {
			p.RV, err = object.ParseResourceVersion(value)
		}
	case "resourceVersionMatch":
		p.Match = value
	case "limit":
		p.Limit, err = strconv.ParseInt(value, 10, 64)
		p.Limit = max(p.Limit, 0)
	case "continue":
		p.Token = value
	case "watch":
		p.Watch = ParseBool(value)
	case "allowWatchBookmarks":
		p.Bookmarks = ParseBool(value)
	case "sendInitialEvents":
		b := ParseBool(value)
		p.InitialEvents = &b
	case "timeoutSeconds":
		p.WatchSeconds, err = strconv.ParseInt(value, 10, 64)
		// Then the duration overflows.
		if p.WatchSeconds < 0 || p.WatchSeconds > math.MaxInt64/int64(time.Second) {
			err = ErrDoubtful
		}
	case "timeout":
		if value != "" {
			p.Timeout, err = time.ParseDuration(value)
			p.Timeout = max(p.Timeout, 0) // as in kube-apiserver
			if p.Timeout > 0 && p.Timeout < timeoutLeast {
				err = ErrDoubtful
			}
		}
	case "includeObject":
		p.IncludeGiven = true
		p.RowObjects = value == string(metav1.IncludeObject)
		if !p.RowObjects && value != "" && value != string(metav1.IncludeMetadata) {
			err = ErrDoubtful
		}
	case "pretty":
	default:
		err = ErrDoubtful
	}
	if err != nil {
		return ErrDoubtful
	}
	return nil
}

// selectorTerms limits the requirements and values of a selector. Reads with longer selectors are
// forwarded. A selector as long as a URI would hold 1.3 MiB while a watch is open, and need 0.1 ms
// for each object.
const selectorTerms = 1000

func (p *Params) selectBy(kind, selector string) (err error) {
	if strings.Count(selector, ",") >= selectorTerms {
		return ErrDoubtful
	}
	if kind == "labelSelector" {
		p.Labels, err = labels.Parse(selector)
	} else {
		p.Fields, err = fields.ParseSelector(selector)
	}
	return err
}

// Kind returns the kind of a read, which is a get if name is set.
func (p *Params) Kind(name string) wire.Read {
	switch {
	case name != "":
		return wire.Get
	case p.Watch:
		return wire.Watch
	}
	return wire.List
}

// Answerable reports whether a cache could answer. It needs no feed.
func (p *Params) Answerable(name string) bool {
	switch p.Kind(name) {
	case wire.Get:
		return p.Match == "" && p.InitialEvents == nil
	case wire.Watch:
		return p.Watchable()
	default:
		return p.InitialEvents == nil
	}
}

// Watchable reports whether the cache can answer a watch with these parameters.
//
//	RV  sendInitialEvents  match         start
//	–   –                  –             the most recent state, then changes
//	–   false              NotOlderThan  changes after the most recent state
//	–   true               NotOlderThan  the most recent state, then changes
//	0   –                  –             the state, then changes
//	0   false              NotOlderThan  changes after the cache's RV
//	0   true               NotOlderThan  the state, then changes
//	N   –                  –             changes after N
//	N   false              NotOlderThan  changes after N
//	N   true               NotOlderThan  a state not older than N, then changes
func (p *Params) Watchable() bool {
	if p.Limit != 0 || p.Token != "" {
		return false
	}
	if p.InitialEvents != nil {
		return p.Match == "NotOlderThan"
	}
	return p.Match == ""
}

// WithState reports whether the watch begins with the current state.
func (p *Params) WithState() bool {
	if p.InitialEvents != nil {
		return *p.InitialEvents
	}
	return p.RV == 0
}

// Indexed reports whether upstream reads the page from an index, so a full page has another token.
func (p *Params) Indexed() bool {
	return p.Fields != nil && !p.Fields.Empty() && p.Token == "" &&
		(p.Match == "NotOlderThan" || !p.RVGiven)
}

// Pinned reports whether a list of all namespaces has a field selector for one of them. Upstream
// reads the first page from that namespace, and its continue token is relative to it.
func (p *Params) Pinned(rt Route) bool {
	if p.Fields == nil || rt.Namespace != "" {
		return false
	}
	_, ok := p.Fields.RequiresExactMatch("metadata.namespace")
	return ok
}

// Since returns the resourceVersion from which a watch resumes, and 0 for other reads and watches.
func (p *Params) Since(name string) uint64 {
	if p.Kind(name) != wire.Watch || p.WithState() {
		return 0
	}
	return p.RV
}

// MostRecent reports whether the read is of the most recent state, from its beginning.
func (p *Params) MostRecent() bool { return !p.RVGiven && p.Token == "" }

// KeptAs returns the encoding of the cache that serves a form.
func KeptAs(c wire.Choice) object.Encoding {
	if c.MediaType == wire.Protobuf {
		return object.Protobuf
	}
	return object.JSON
}
