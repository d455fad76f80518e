package client

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Transport returns a transport to the current server. ways contains the servers' transports, in
// the servers' order. Each transport must accept requests for any server's address.
func (s *Servers) Transport(ways []http.RoundTripper) http.RoundTripper {
	if s.alone() {
		return ways[0]
	}
	t := &failover{set: s, ways: map[*server]http.RoundTripper{}}
	for i, one := range s.servers {
		t.ways[one] = ways[i]
	}
	return t
}

// failover sends requests to the current server. A request that gets no connection to that server
// goes to the next usable server.
type failover struct {
	set  *Servers
	ways map[*server]http.RoundTripper
}

func (t *failover) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	for i, one := range t.set.candidates() {
		if i > 0 && req.Body != nil && req.Body != http.NoBody { // the first server closed it
			if req.GetBody == nil {
				return nil, err
			}
			again := *req
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
			req = &again
		}
		var sent bool
		resp, sent, err = t.send(one, req)
		if err == nil || req.Context().Err() != nil {
			return resp, err
		}
		t.set.failed(one, err)
		if sent {
			return nil, err
		}
	}
	return nil, err
}

func (s *Servers) candidates() []*server {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*server{s.current.Load()}
	for _, one := range s.servers {
		if one != all[0] && one.usable() {
			all = append(all, one)
		}
	}
	return all
}

// send sends a request to one server. sent is false if the request got no connection, for example
// because a TLS handshake failed.
func (t *failover) send(one *server, req *http.Request) (_ *http.Response, sent bool, _ error) {
	var waits atomic.Bool // for a connection
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { waits.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { waits.Store(false) },
	}))
	address := *req.URL
	address.Scheme, address.Host = one.Base.Scheme, one.Base.Host
	out.URL, out.Host = &address, ""
	resp, err := t.ways[one].RoundTrip(out)
	return resp, !waits.Load(), err
}
