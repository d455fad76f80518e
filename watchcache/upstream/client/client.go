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
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Client sends requests to one upstream apiserver through client-go's transport, which adds
// credentials, TLS and HTTP/2.
type Client struct {
	Base  *url.URL
	HTTP  *http.Client
	Clock object.Clock // compared with upstream's by all responses
	// Compresses is true if upstream compressed the latest watch that began with the state.
	Compresses atomic.Bool
	metrics    *Metrics
	server     chan serverVersion // contains the last answer
	// own are the Warning headers of the latest document of discovery: warnings about the proxy's
	// own credentials, which upstream adds to every response.
	own atomic.Pointer[[]string]
}

// New returns a client for the server at base. A path of base begins every request path.
func New(base *url.URL, transport http.RoundTripper, metrics *Metrics) *Client {
	server := make(chan serverVersion, 1)
	server <- serverVersion{}
	h := &http.Client{Transport: transport}
	return &Client{
		Base:    base,
		HTTP:    h,
		metrics: metrics,
		server:  server,
	}
}

// MaxErrorBody is the maximum number of bytes that are read from an error's body.
const MaxErrorBody = 64 << 10

// Get is a GET request.
type Get struct {
	Verb   string // in metrics
	GVR    schema.GroupVersionResource
	Path   string
	Query  url.Values
	Accept string
}

// Send sends one request. Every status except 200 becomes an error of apimachinery's api/errors.
// The caller must close the body. Send requests a response that is not from a cache, such as that
// of a lower proxy with a maxAge. Any other response is [ErrAged].
func (c *Client) Send(ctx context.Context, g Get) (*http.Response, error) {
	u := *c.Base
	u.Path = strings.TrimSuffix(u.Path, "/") + g.Path
	u.RawQuery = g.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request upstream %s: %w", g.Path, err)
	}
	req.Header.Set("Accept", g.Accept)
	req.Header.Set("User-Agent", UserAgent)
	req.Header.Set("Cache-Control", "no-cache")
	sent := time.Now()
	resp, err := c.HTTP.Do(req)
	if err != nil {
		c.metrics.request(g.Verb, g.GVR, 0)
		return nil, fmt.Errorf("%s upstream: %w", g.Verb, err)
	}
	c.metrics.request(g.Verb, g.GVR, resp.StatusCode)
	resp.Body = c.metrics.body(g.GVR, resp.Body)
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		c.Clock.Note(sent, time.Now(), date)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	if age := resp.Header.Get("Age"); age != "" {
		_ = resp.Body.Close() // it is not read
		return nil, fmt.Errorf("%s upstream: %w, of age %.20q", g.Verb, ErrAged, age)
	}
	return resp, nil
}

// GetCollection is like Send, for the collection of a resource within its scope.
func (c *Client) GetCollection(
	ctx context.Context, accept, verb string, r *object.Resource, query url.Values,
) (*http.Response, error) {
	return c.Send(ctx, Get{
		Verb: verb, GVR: r.GVR, Accept: accept,
		Path: ResourcePath(r.GVR, r.Scope.Namespace), Query: within(r.Scope, query),
	})
}

func within(s object.Scope, query url.Values) url.Values {
	if s.Fields != "" {
		query.Set("fieldSelector", s.Fields)
	}
	if s.Labels != "" {
		query.Set("labelSelector", s.Labels)
	}
	return query
}

// Read reads a JSON document.
func (c *Client) Read(
	ctx context.Context, gvr schema.GroupVersionResource, path string, into any,
) error {
	resp, err := c.Send(ctx, Get{
		Verb:   "discover",
		GVR:    gvr,
		Path:   path,
		Accept: MimeJSON,
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	own := resp.Header.Values("Warning")
	c.own.Store(&own)
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read upstream %s: %w", path, err)
	}
	return nil
}

// UserAgent is the User-Agent of all requests. If upstream is itself a proxy, it recognises by this
// value that this proxy forwards events to clients of its own (see watchcache.Cursor.WholeHistory).
const UserAgent = "watchproxy"

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

func readStatus(body []byte) (status metav1.Status, ok bool) {
	var envelope runtime.Unknown
	if readEnvelope(body, &envelope) == nil {
		return status, envelope.Kind == "Status" && status.Unmarshal(envelope.Raw) == nil
	}
	return status, json.Unmarshal(body, &status) == nil && status.Kind == "Status"
}

// RetryAfter returns the pause that upstream requested, or 0.
func RetryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// ResourcePath returns the path of a collection. The namespace "" means all namespaces.
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

// namespaceResource is the resource namespaces, which exists in every cluster.
var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// ServerVersion returns the version that upstream's apiserver had at since or later. An emulated
// version is another one. One request runs at a time, and callers that wait share the next one.
func (c *Client) ServerVersion(ctx context.Context, since time.Time) (string, error) {
	var last serverVersion
	select {
	case last = <-c.server:
		defer func() { c.server <- last }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if !last.asked.Before(since) {
		return last.version, nil
	}
	var v version.Info
	asked := time.Now()
	if err := c.Read(ctx, schema.GroupVersionResource{}, "/version", &v); err != nil {
		return "", err
	}
	last = serverVersion{v.GitVersion, asked}
	if v.EmulationMinor != "" {
		last.version += " as " + v.EmulationMajor + "." + v.EmulationMinor
	}
	return last.version, nil
}

type serverVersion struct {
	version string
	asked   time.Time
}
