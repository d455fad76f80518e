package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// NoSuchNamespace cannot exist, because names of namespaces have no dots.
	NoSuchNamespace = "watchproxy.none"
	// NoSuchName is a valid path segment, so the apiserver looks up one key. No object can have
	// this name.
	NoSuchName = "watchproxy.dev:none"
)

// Probe is the result of the cheapest consistent read: a list that matches nothing.
type Probe struct {
	RV       uint64 // upstream's current revision for this resource
	ListKind string
	// SelfDescribing is true for custom resources, whose keys are sorted. It is false for built-in
	// types, which put kind first.
	SelfDescribing bool
	Warnings       []string // Warning headers, which upstream sends with each response
	Columns        []byte   // the column definitions of a Table
	// Ahead is by how much upstream's clock is ahead of this one; 0 if upstream does not tell the
	// time. It is exact to a second.
	Ahead time.Duration
}

// maxProbeBody bounds an empty list, in bytes.
const maxProbeBody = 1 << 20

// Probe asks upstream for its revision and finds out the form of the resource's lists. The metrics
// count the request under the given verb.
func (c *Client) Probe(ctx context.Context, verb string, r *object.Resource) (Probe, error) {
	path, query := Nothing(r)
	query.Set("limit", "1")
	resp, err := c.GetAs(ctx, AcceptOf(r.Encoding), verb, r.GVR, path, query)
	if apierrors.IsNotAcceptable(err) {
		return Probe{}, fmt.Errorf("%w: %w", object.ErrNoEncoding, err)
	}
	if err != nil {
		return Probe{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return Probe{}, fmt.Errorf("probe upstream: %w", err)
	}
	if err := CheckEncoding(resp, r.Encoding); err != nil {
		if CheckEncoding(resp, object.JSON) == nil {
			err = fmt.Errorf("%w: %w", object.ErrNoEncoding, err)
		}
		return Probe{}, err
	}
	read, want := readJSONProbe, r.APIVersion()
	switch r.Encoding {
	case object.Protobuf:
		read = readProtoProbe
	case object.Table:
		read, want = readTableProbe, object.TableVersion
	}
	p, version, err := read(body)
	if err != nil {
		return Probe{}, fmt.Errorf("list of %s: %w", r.GVR.Resource, err)
	}
	if p.ListKind == "" || version != want {
		return Probe{}, fmt.Errorf("%w: list of %s has kind %q, apiVersion %q",
			object.ErrMalformed, r.GVR.Resource, p.ListKind, version)
	}
	p.Warnings = resp.Header.Values("Warning")
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		p.Ahead = time.Until(date)
	}
	return p, nil
}

func readJSONProbe(body []byte) (p Probe, apiVersion string, err error) {
	if !gjson.ValidBytes(body) {
		return p, "", fmt.Errorf("%w: not JSON", object.ErrMalformed)
	}
	list := gjson.ParseBytes(body)
	p.ListKind = list.Get("kind").Str
	list.ForEach(func(k, _ gjson.Result) bool {
		p.SelfDescribing = k.Str != "kind"
		return false
	})
	p.RV, err = object.ParseResourceVersion(list.Get("metadata.resourceVersion").Str)
	return p, list.Get("apiVersion").Str, err
}

func readTableProbe(body []byte) (p Probe, apiVersion string, err error) {
	p, apiVersion, err = readJSONProbe(body)
	columns := gjson.GetBytes(body, "columnDefinitions")
	if err == nil && (p.ListKind != "Table" || !columns.IsArray()) {
		err = fmt.Errorf("%w: a %s instead of a Table", object.ErrNoEncoding, p.ListKind)
	}
	p.Columns = []byte(columns.Raw)
	return p, apiVersion, err
}

func readProtoProbe(body []byte) (p Probe, apiVersion string, err error) {
	kind, meta, _, err := readProtoList(body)
	if err != nil {
		return p, "", err
	}
	p.ListKind = kind.Kind
	p.RV, err = object.ParseResourceVersion(meta.ResourceVersion)
	return p, kind.APIVersion, err
}

// Nothing returns the path and the query of a list that matches no object.
func Nothing(r *object.Resource) (path string, query url.Values) {
	if r.Namespaced {
		return ResourcePath(r.GVR, NoSuchNamespace), url.Values{}
	}
	return ResourcePath(r.GVR, ""), url.Values{"fieldSelector": {"metadata.name=" + NoSuchName}}
}

// ProbeTimeout bounds a probe without readers.
const ProbeTimeout = 10 * time.Second
