package documents

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// question has the parts of a request that select upstream's document.
type question struct {
	path, hash string
	accept     string
	gzip       bool
}

const (
	// pathMost and acceptMost limit a path and an Accept header, in bytes. hashMost is the length
	// of a hash, SHA-512 in hexadecimal digits.
	pathMost, acceptMost, hashMost = 512, 512, 128
	// timeoutLeast is the minimum timeout parameter of a request that is answered here. For a
	// shorter or malformed timeout, upstream returns the error.
	timeoutLeast = time.Second
	openAPIv3    = "/openapi/v3/"
)

// parse parses a request. It returns false if the request must be forwarded.
func parse(req *exchange.Request) (q question, ok bool) {
	q = question{path: req.Path, accept: req.Header.Get("Accept")}
	ok = req.Method == http.MethodGet && req.Body == nil && q.isDocument() && req.Plain("If-None-Match", "If-Modified-Since") &&
		len(q.accept) <= acceptMost && q.encoding(req.Header.Get("Accept-Encoding")) && q.query(req.Query) && conditional(req.Header) &&
		// For terminals and browsers, upstream indents discovery.
		(strings.HasPrefix(q.path, "/openapi") || !req.Pretty())
	return q, ok
}

// isDocument reports whether upstream sends the document with an ETag, or lists such documents.
func (q *question) isDocument() bool {
	switch q.path {
	case "/api", "/apis":
		return strings.Contains(q.accept, "as=APIGroupDiscoveryList")
	case "/openapi/v2", "/openapi/v3":
		return true
	}
	return strings.HasPrefix(q.path, openAPIv3) && len(q.path) <= pathMost && exchange.Canonical(q.path)
}

// encoding parses an Accept-Encoding header. Upstream's handlers agree on plain lists of encodings.
func (q *question) encoding(accepted string) bool {
	for token := range strings.SplitSeq(accepted, ",") {
		q.gzip = q.gzip || strings.TrimSpace(token) == "gzip"
	}
	return !strings.ContainsAny(accepted, ";*") && accepted == strings.ToLower(accepted)
}

// query parses the parameters: a hash, and kubectl's timeout.
func (q *question) query(query string) bool {
	values, err := url.ParseQuery(query)
	for name, of := range values {
		switch {
		case len(of) != 1:
			return false
		case name == "timeout":
			if d, err := time.ParseDuration(of[0]); err != nil || d < timeoutLeast {
				return false
			}
		case name != "hash", !strings.HasPrefix(q.path, openAPIv3), !isHash(of[0]):
			return false
		default:
			q.hash = of[0]
		}
	}
	return err == nil
}

func isHash(s string) bool {
	return s != "" && len(s) <= hashMost && strings.Trim(s, "0123456789ABCDEF") == ""
}

// conditional reports whether a request has either no condition or one strong tag. A date counts
// only without a tag (RFC 9110, 13.1.3).
func conditional(header http.Header) bool {
	tag := header.Get("If-None-Match")
	if tag == "" {
		return header.Get("If-Modified-Since") == ""
	}
	return isStrong(tag)
}

// isStrong reports whether a header is one strong ETag.
func isStrong(tag string) bool {
	return len(tag) > len(`""`) && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], `",`)
}

// key returns a string that differs between different questions.
func (q *question) key() string {
	encoding := ""
	if q.gzip {
		encoding = "gzip"
	}
	return strings.Join([]string{q.path, q.hash, encoding, q.accept}, "\n")
}

// request returns the proxy's own request. If there is a copy, the request has its ETag.
func (q *question) request(known *document) *exchange.Request {
	r := &exchange.Request{Method: http.MethodGet, Target: q.path, Header: http.Header{"User-Agent": {"watchproxy"}}, Client: exchange.Nobody{}}
	if q.hash != "" {
		r.Target += "?hash=" + q.hash
	}
	if q.accept != "" {
		r.Header.Set("Accept", q.accept)
	}
	if q.gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	if known != nil {
		r.Header.Set("If-None-Match", known.tag)
	}
	r.SplitTarget()
	return r
}
