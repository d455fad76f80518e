package exchange

import (
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Kind returns the kind of a read, of an object if it has a name. It decides the form of the
// response.
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

// Indexed reports whether upstream reads the page from an index. A full page then has another
// token.
func (p *Params) Indexed() bool {
	return p.Fields != nil && !p.Fields.Empty() && p.Token == "" && (p.Match == "NotOlderThan" || !p.RVGiven)
}

// Pinned reports whether the read lists all namespaces with a field selector that names one
// namespace. Upstream reads the first page from that namespace. Its continue token is relative to
// the namespace.
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
