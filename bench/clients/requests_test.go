package clients

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"
)

// proxied returns the body of the proxy's answer, which must be 200.
func (w *world) proxied(t *testing.T, target string) []byte {
	t.Helper()
	return httpGet(t, w.proxy.URL+target)
}

// endpoint is one of the two servers as a bare HTTP/1.1 client reaches it.
type endpoint struct {
	name   string
	url    string
	token  string
	client *http.Client
}

// endpoints are the apiserver and the proxy, in this order.
func (w *world) endpoints(t *testing.T) [2]endpoint {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(w.api.CA) {
		t.Fatal("the apiserver has no CA")
	}
	client := func() *http.Client {
		tr := &http.Transport{
			DisableCompression:    true,
			ResponseHeaderTimeout: limit,
			ExpectContinueTimeout: limit, // never send a body that was not asked for
			TLSClientConfig:       &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}},
		}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	return [2]endpoint{
		{"apiserver", w.api.URL, w.api.Token, client()},
		{"proxy", w.proxy.URL, "", client()},
	}
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(a.body, into); err != nil {
		t.Fatalf("%d %.200s: %v", a.status, a.body, err)
	}
}

// send sends a request and reads the answer. A length of -1 sends the body in chunks.
func (e endpoint) send(t *testing.T, method, target string, header http.Header, body io.Reader, length int64) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.url+target, body)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	if e.token != "" && header.Get("Authorization") == "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	if body != nil {
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatalf("%s: %s %.200s: %v", e.name, method, target, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %s %.200s: read answer: %v", e.name, method, target, err)
	}
	return answer{resp.StatusCode, resp.Header, got}
}

func (e endpoint) get(t *testing.T, target string, header http.Header) answer {
	t.Helper()
	return e.send(t, http.MethodGet, target, header, nil, 0)
}

func (e endpoint) post(t *testing.T, target string, body []byte) answer {
	t.Helper()
	return e.send(t, http.MethodPost, target, nil, bytes.NewReader(body), int64(len(body)))
}

// open sends a watch and returns when its header is there. It ends with the context.
func (e endpoint) open(ctx context.Context, t *testing.T, target string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	began := time.Now()
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatalf("%s: %s: after %v: %v", e.name, target, time.Since(began), err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", e.name, target, resp.Status)
	}
	return resp
}
