package upstream

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// noSuchNamespace cannot exist: namespaces have no dots.
	noSuchNamespace = "watchproxy.none"
	// noSuchName exists nowhere: it is valid as a path segment, so the
	// apiserver looks up one key, and nobody names an object so.
	noSuchName = "watchproxy.dev:none"
)

// probe is the cheapest consistent read there is: a list that matches nothing.
type probe struct {
	rv       uint64 // upstream's current revision as this resource sees it
	listKind string
	// selfDescribing tells custom resources from built-in types: these put
	// kind first, those sort their keys.
	selfDescribing bool
	warnings       []string // Warning headers, which come with every request
}

// maxProbeBody bounds an empty list, in bytes.
const maxProbeBody = 1 << 20

// probe asks upstream for its revision and learns how it writes this resource.
func (c *Client) probe(ctx context.Context, r *object.Resource) (probe, error) {
	return c.probeAs(ctx, "probe", r)
}

// probeAs is probe, counted as another verb.
func (c *Client) probeAs(ctx context.Context, verb string, r *object.Resource) (probe, error) {
	path, query := nothing(r)
	query.Set("limit", "1")
	resp, err := c.getAs(ctx, mimeOf(r.Encoding), verb, r.GVR, path, query)
	if apierrors.IsNotAcceptable(err) {
		return probe{}, fmt.Errorf("%w: %w", ErrNoEncoding, err)
	}
	if err != nil {
		return probe{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return probe{}, fmt.Errorf("probe upstream: %w", err)
	}
	if err := checkEncoding(resp, r.Encoding); err != nil {
		if checkEncoding(resp, object.JSON) == nil {
			err = fmt.Errorf("%w: %w", ErrNoEncoding, err)
		}
		return probe{}, err
	}
	read := readJSONProbe
	if r.Encoding == object.Protobuf {
		read = readProtoProbe
	}
	p, version, err := read(body)
	if err != nil {
		return probe{}, fmt.Errorf("list of %s: %w", r.GVR.Resource, err)
	}
	if p.listKind == "" || version != r.APIVersion() {
		return probe{}, fmt.Errorf("%w: list of %s has kind %q, apiVersion %q",
			object.ErrMalformed, r.GVR.Resource, p.listKind, version)
	}
	p.warnings = resp.Header.Values("Warning")
	return p, nil
}

func readJSONProbe(body []byte) (p probe, apiVersion string, err error) {
	if !gjson.ValidBytes(body) {
		return p, "", fmt.Errorf("%w: not JSON", object.ErrMalformed)
	}
	list := gjson.ParseBytes(body)
	p.listKind = list.Get("kind").Str
	list.ForEach(func(k, _ gjson.Result) bool {
		p.selfDescribing = k.Str != "kind"
		return false
	})
	p.rv, err = object.ParseResourceVersion(list.Get("metadata.resourceVersion").Str)
	return p, list.Get("apiVersion").Str, err
}

func readProtoProbe(body []byte) (p probe, apiVersion string, err error) {
	kind, meta, _, err := readProtoList(body)
	if err != nil {
		return p, "", err
	}
	p.listKind = kind.Kind
	p.rv, err = object.ParseResourceVersion(meta.ResourceVersion)
	return p, kind.APIVersion, err
}

// nothing is a path and a query that no object matches.
func nothing(r *object.Resource) (path string, query url.Values) {
	if r.Namespaced {
		return resourcePath(r.GVR, noSuchNamespace), url.Values{}
	}
	return resourcePath(r.GVR, ""), url.Values{"fieldSelector": {"metadata.name=" + noSuchName}}
}
