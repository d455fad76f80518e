package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
)

// ErrRevoked says that the client of an open watch has lost its access.
var ErrRevoked = errors.New("access was revoked")

// Credentials are the part of a request that identifies its sender. An open watch keeps them for
// later reviews.
type Credentials struct {
	header []string // names, each followed by a value
	conn   Conn
	tls    *tls.ConnectionState
}

// Credentials returns the request's credentials. Without authentication they are empty.
func (r *Request) Credentials() (c Credentials) {
	if r.Identity == nil {
		return c
	}
	c.conn, c.tls = r.Conn, r.TLS
	for name, values := range r.Header {
		if isIdentity(name) {
			for _, v := range values {
				c.header = append(c.header, name, v)
			}
		}
	}
	return c
}

// AsHTTP returns a request with these credentials, for package access.
func (c Credentials) AsHTTP(ctx context.Context) *http.Request {
	r := Request{
		Conn:   c.conn,
		TLS:    c.tls,
		Header: http.Header{},
	}
	for i := 0; i < len(c.header); i += 2 {
		r.Header.Add(c.header[i], c.header[i+1])
	}
	return r.Sender(ctx)
}

// Sender returns a request with the sender's credentials, for package access. The paths and queries
// of strangers must stay unparsed.
func (r *Request) Sender(ctx context.Context) *http.Request {
	asked := &http.Request{
		Method:     http.MethodGet,
		URL:        &url.URL{Path: "/"},
		RequestURI: "/",
		RemoteAddr: r.Address(),
		Header:     r.Header,
		TLS:        r.TLS,
	}
	return asked.WithContext(ctx)
}

func address(c Conn) string {
	if c == nil {
		return ""
	}
	return c.RemoteAddr().String()
}
