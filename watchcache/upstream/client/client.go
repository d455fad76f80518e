package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Client sends requests to one upstream apiserver through client-go's transport, which adds
// credentials, TLS and HTTP/2.
type Client struct {
	Base    *url.URL
	HTTP    *http.Client
	metrics *Metrics
}

// New returns a client for the server at base. If base has a path, it is prepended to every request
// path.
func New(base *url.URL, transport http.RoundTripper, metrics *Metrics) *Client {
	return &Client{Base: base, HTTP: &http.Client{Transport: transport}, metrics: metrics}
}

// MaxErrorBody is the number of bytes of an error's body that are read at most.
const MaxErrorBody = 64 << 10

// get sends one GET request. It returns every response other than 200 as an error of apimachinery's
// api/errors. The caller closes the body.
func (c *Client) get(ctx context.Context, verb string, gvr schema.GroupVersionResource, path string, query url.Values) (*http.Response, error) {
	return c.GetAs(ctx, MimeJSON, verb, gvr, path, query)
}

// GetAs is like get, with an Accept header of the caller's choice.
func (c *Client) GetAs(ctx context.Context, accept, verb string, gvr schema.GroupVersionResource, path string, query url.Values) (*http.Response, error) {
	u := *c.Base
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request upstream %s: %w", path, err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", UserAgent)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		c.metrics.request(verb, gvr, 0)
		return nil, fmt.Errorf("%s upstream: %w", verb, err)
	}
	c.metrics.request(verb, gvr, resp.StatusCode)
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	return resp, nil
}

// Read reads a JSON document.
func (c *Client) Read(ctx context.Context, gvr schema.GroupVersionResource, path string, into any) error {
	resp, err := c.get(ctx, "discover", gvr, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read upstream %s: %w", path, err)
	}
	return nil
}

// UserAgent tells an upstream that is itself a proxy that this proxy passes events on to its own
// clients: see watchcache.Cursor.WholeHistory.
const UserAgent = "watchproxy"

// statusError returns the Status that kube-apiserver sends with an error. If the body is none,
// statusError makes a Status.
func statusError(resp *http.Response) error {
	defer resp.Body.Close() //nolint:errcheck // the error is the answer
	body, _ := io.ReadAll(io.LimitReader(resp.Body, MaxErrorBody))
	status, ok := readStatus(body)
	if !ok {
		status = metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  metav1.StatusReasonUnknown,
			Message: fmt.Sprintf("upstream answered %s: %.200s", resp.Status, body),
		}
	}
	status.Code = int32(resp.StatusCode)
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		if status.Details == nil {
			status.Details = &metav1.StatusDetails{}
		}
		status.Details.RetryAfterSeconds = int32(seconds)
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// readStatus decodes a Status from JSON or protobuf.
func readStatus(body []byte) (status metav1.Status, ok bool) {
	var envelope runtime.Unknown
	if readEnvelope(body, &envelope) == nil {
		return status, envelope.Kind == "Status" && status.Unmarshal(envelope.Raw) == nil
	}
	return status, json.Unmarshal(body, &status) == nil && status.Kind == "Status"
}

// RetryAfter is the pause that upstream asked for, or 0.
func RetryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// ResourcePath is the path of a collection. The namespace "" means all namespaces.
func ResourcePath(gvr schema.GroupVersionResource, namespace string) string {
	path := "/apis/" + gvr.Group + "/" + gvr.Version
	if gvr.Group == "" {
		path = "/api/" + gvr.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + gvr.Resource
}

// Namespaces is the resource of namespaces, which every cluster has.
var Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// Cluster returns an identifier of the cluster: the uid of the namespace kube-system, or "" if the
// proxy may not read it.
func (c *Client) Cluster(ctx context.Context) (uid string, err error) {
	var system struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	err = c.Read(ctx, Namespaces, ResourcePath(Namespaces, "")+"/kube-system", &system)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return "", nil
	}
	return system.Metadata.UID, err
}
