package documents

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// document is an immutable response from upstream.
type document struct {
	status int
	header http.Header
	body   []byte
	tag    string // its ETag; "" if the document must not be kept
	came   time.Time
}

// form identifies a copy by upstream's response, so clients cannot make up forms. It includes the
// body's hash, because the headers do not show whether JSON is indented.
type form struct {
	path, hash, tag, contentType, encoding string
	body                                   [sha256.Size]byte
}

// ofRequest are headers that belong to a request instead of the document.
var ofRequest = []string{"Audit-Id", "Date", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid"}

// newDocument makes a document from a response whose body has been read.
func newDocument(answer *exchange.Response) *document {
	d := &document{status: answer.Status, header: answer.Header, body: answer.Bytes, came: time.Now()}
	for _, name := range ofRequest {
		d.header.Del(name)
	}
	if tag := d.header.Get("Etag"); d.status == http.StatusOK && isStrong(tag) {
		d.tag = tag
	}
	return d
}

func (d *document) form(q question) form {
	return form{q.path, q.hash, d.tag, d.header.Get("Content-Type"), d.header.Get("Content-Encoding"), sha256.Sum256(d.body)}
}

// size estimates the memory of a copy, in bytes.
func (d *document) size() int64 {
	const fixed = 2 << 10
	return int64(len(d.body)) + fixed
}

// ofBody are headers that upstream omits if there is no body.
var ofBody = []string{"Accept-Ranges", "Content-Encoding", "Content-Type", "Last-Modified"}

// answer answers a request with the document, or with 304 if the client has it.
func (d *document) answer(req *exchange.Request, from exchange.Source) *exchange.Response {
	resp := &exchange.Response{Status: d.status, Header: d.header.Clone(), Source: from, Unseen: true}
	resp.Header.Set("Audit-Id", req.AuditID())
	if expires, err := time.Parse(time.RFC1123, d.header.Get("Expires")); err == nil {
		resp.Header.Set("Expires", strings.Replace(expires.Add(time.Since(d.came)).Format(time.RFC1123), "GMT", "UTC", 1))
	}
	switch {
	case d.tag != "" && req.Header.Get("If-None-Match") == d.tag:
		resp.Status = http.StatusNotModified
		for _, name := range ofBody {
			resp.Header.Del(name)
		}
	case len(d.body) <= exchange.SmallBody:
		resp.Bytes = d.body
	default:
		resp.Reader, resp.Length = io.NopCloser(bytes.NewReader(d.body)), int64(len(d.body))
	}
	return resp
}
