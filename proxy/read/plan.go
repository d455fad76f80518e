package read

import (
	"net/http"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// plan is what a read asks for: of which objects, from which state, in which form, and for whom. It
// is data. parse and negotiate make it from a request, and answer and authorize complete it.
type plan struct {
	exchange.Route
	exchange.Params
	Kind wire.Read
	// The forms that the client accepts and the cache may have, the best first.
	Choices []wire.Choice
	Gzip    bool // the client accepts gzip
	// LimitsAge means that the client limits the age of the response. An upper proxy does so,
	// because a response of any age proves nothing.
	LimitsAge bool
	// Alone means that upstream may not answer, because it would refuse the read. The cache shows
	// the namespaces that the client may read.
	Alone bool
	// Resumes means a watch in a view of namespaces that does not begin with the state. Answer
	// refuses it, unless upstream has to answer a read of this resource or with these parameters.
	Resumes bool
}

// cacheable returns why the cache cannot answer, or nil. It runs before the query is parsed.
func cacheable(req *exchange.Request) error {
	switch {
	case req.Method != http.MethodGet || !req.Route.Resource || !req.Route.Plain ||
		req.Body != nil || req.WantsUpgrade():
		return NotARead
	case req.Header.Get("Origin") != "":
		return Parameters // upstream may let pages of this origin read the response
	case req.Identity.Anonymous(), req.Identity == nil && (req.Identified() || req.Impersonates()):
		return Credentials // the proxy does not know this client's rights
	}
	return nil
}

func parse(req *exchange.Request) (p plan, err error) {
	p.Route = req.Route
	p.Params, err = exchange.Parse(req.Query)
	p.Kind = p.Params.Kind(p.Name)
	p.LimitsAge = req.Header.Get("Cache-Control") != ""
	p.Gzip = wire.AcceptsGzip(req.Header.Get("Accept-Encoding"))
	return p, err
}

func (p *plan) negotiate(req *exchange.Request, accept string) {
	p.Choices = wire.Negotiate(accept, p.Kind, req.Pretty())
	if fields := req.Route.View.Of(p.GVR.GroupResource()); fields != nil {
		p.Choices = wire.NegotiateCut(accept, p.Kind, req.Pretty(), fields, p.GVR)
	}
	// Indented JSON, which is the last choice if any, is left to upstream. A list that upstream
	// does not have is not indented.
	last := len(p.Choices) - 1
	switch {
	case last < 0 || !p.Choices[last].Pretty:
	case req.Route.View.Narrows(p.Route):
		p.Choices[last].Pretty = false
	default:
		p.Choices = p.Choices[:last]
	}
}

func (p *plan) want() object.Want {
	w := p.Want(p.Route)
	w.Split = p.Alone && !exchange.IsNamespaces(p.GVR.GroupResource())
	return w
}

// mostRecentGet reports whether the read is a get of the most recent state. Upstream reads one
// object at less cost than it proves a cache current, so the cache answers only within a maxAge.
func (p *plan) mostRecentGet() bool { return p.Name != "" && !p.RVGiven }

// waits reports whether the read waits for a proof that takes seconds. A list is forwarded instead,
// if upstream may answer it. A watch would stay there for long.
func (p *plan) waits() bool { return p.Kind != wire.List || p.RVGiven || p.Alone }

// compresses reports whether kube-apiserver would compress a body of this length.
func (p *plan) compresses(length int64) bool {
	return length > wire.GzipThreshold && p.Gzip
}

func (p *plan) asked(path string) exchange.Asked {
	return exchange.Asked{
		Route:  p.Route,
		Path:   path,
		Labels: p.Labels,
		Fields: p.Fields,
	}
}
