package read

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// params are the query parameters that the cache understands. If a parameter is repeated, the first
// value counts.
type params struct {
	labels labels.Selector // nil selects everything
	fields fields.Selector
	watch  bool

	rv      uint64
	rvGiven bool // resourceVersion is set and not empty
	match   string
	limit   int64
	token   string // continue

	timeout bool // the client has set a timeout: bound
	bound   time.Duration

	bookmarks     bool
	initialEvents *bool
	watchSeconds  int64 // timeoutSeconds, 0 if not set
}

// parseParams reads a query. For unknown, malformed and doubtful parameters the error is Beyond.
func parseParams(query string) (params, error) {
	var p params
	values, err := url.ParseQuery(query)
	if err != nil {
		return p, Beyond
	}
	for name, all := range values {
		if err := p.set(name, all[0]); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *params) set(name, value string) (err error) {
	switch name {
	case "labelSelector", "fieldSelector":
		err = p.selectBy(name, value)
	case "resourceVersion":
		if p.rvGiven = value != ""; p.rvGiven {
			p.rv, err = object.ParseResourceVersion(value)
		}
	case "resourceVersionMatch":
		p.match = value
	case "limit":
		p.limit, err = strconv.ParseInt(value, 10, 64)
		p.limit = max(p.limit, 0)
	case "continue":
		p.token = value
	case "watch":
		p.watch = exchange.ParseBool(value)
	case "allowWatchBookmarks":
		p.bookmarks = exchange.ParseBool(value)
	case "sendInitialEvents":
		b := exchange.ParseBool(value)
		p.initialEvents = &b
	case "timeoutSeconds":
		p.watchSeconds, err = strconv.ParseInt(value, 10, 64)
		if p.watchSeconds < 0 {
			err = Beyond
		}
	case "timeout":
		if p.timeout = value != ""; p.timeout {
			p.bound, err = time.ParseDuration(value)
		}
	case "pretty":
	default:
		err = Beyond
	}
	if err != nil {
		return Beyond
	}
	return nil
}

// selectorTerms bounds the requirements and values of a selector. Reads with longer selectors go
// upstream. A selector as long as a URI would hold 1.3 MiB while a watch is open, and take 0.1 ms
// for each object.
const selectorTerms = 1000

func (p *params) selectBy(kind, selector string) (err error) {
	if strings.Count(selector, ",") >= selectorTerms {
		return Beyond
	}
	if kind == "labelSelector" {
		p.labels, err = labels.Parse(selector)
	} else {
		p.fields, err = fields.ParseSelector(selector)
	}
	return err
}
