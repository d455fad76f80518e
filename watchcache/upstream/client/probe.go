package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// NoSuchNamespace cannot exist, because names of namespaces contain no dots.
	NoSuchNamespace = "watchproxy.none"
	// NoSuchName is a name that no object can have. It is a valid path segment, so the apiserver
	// looks up one key.
	NoSuchName = "watchproxy.dev:none"
)

// Probe is the result of the cheapest consistent read: a list of nothing, or of a single object.
type Probe struct {
	RV             uint64 // upstream's current revision for this resource
	ListKind       string
	SelfDescribing bool // see [object.Resource]
	// Foreign is true if the list is in neither form: a built-in type's metadata has only the
	// resourceVersion, and a custom resource's has continue before it. Items that are empty are [].
	Foreign  bool
	Warnings []string // the Warning headers of every response, whatever its user
	Columns  []byte   // the column definitions of a Table
	// EmptyRows is how upstream writes a Table without rows, "[]" or "null". It is "" if the probe
	// has found a row.
	EmptyRows string
}

const maxProbeBody = 4 << 20

// Probe reads upstream's revision and the form of the resource's lists. verb is for the metrics.
func (c *Client) Probe(ctx context.Context, verb string, r *object.Resource) (Probe, error) {
	path, query := nothing(r)
	query.Set("limit", "1")
	resp, err := c.Send(ctx, Get{verb, r.GVR, path, query, AcceptOf(r.Encoding)})
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
		return Probe{}, object.Malformed("list of %s has kind %q, apiVersion %q",
			r.GVR.Resource, p.ListKind, version)
	}
	p.Warnings = slices.DeleteFunc(resp.Header.Values("Warning"), c.isOwn)
	return p, nil
}

func (c *Client) isOwn(warning string) bool {
	own := c.own.Load()
	return own != nil && slices.Contains(*own, warning)
}

func readJSONProbe(body []byte) (p Probe, apiVersion string, err error) {
	if !gjson.ValidBytes(body) {
		return p, "", object.Malformed("not JSON")
	}
	list := gjson.ParseBytes(body)
	p.ListKind = list.Get("kind").Str
	first, metadata := "kind", []string{"resourceVersion"}
	keys := append(keysOf(list), "") // there may be none
	if p.SelfDescribing = keys[0] != first; p.SelfDescribing {
		first, metadata = "apiVersion", []string{"continue", "resourceVersion"}
	}
	items := list.Get("items")
	p.Foreign = keys[0] != first || !slices.Equal(keysOf(list.Get("metadata")), metadata) ||
		len(items.Array()) == 0 && items.Raw != "[]"
	p.RV, err = object.ParseResourceVersion(list.Get("metadata.resourceVersion").Str)
	return p, list.Get("apiVersion").Str, err
}

func keysOf(of gjson.Result) (keys []string) {
	of.ForEach(func(k, _ gjson.Result) bool {
		keys = append(keys, k.Str)
		return true
	})
	return keys
}

func readTableProbe(body []byte) (p Probe, apiVersion string, err error) {
	p, apiVersion, err = readJSONProbe(body)
	columns := gjson.GetBytes(body, "columnDefinitions")
	if err == nil && (p.ListKind != "Table" || !columns.IsArray()) {
		err = fmt.Errorf("%w: a %s instead of a Table", object.ErrNoEncoding, p.ListKind)
	}
	p.Columns = []byte(columns.Raw)
	if rows := gjson.GetBytes(body, "rows"); len(rows.Array()) == 0 {
		p.EmptyRows = strings.Join(strings.Fields(rows.Raw), "")
	}
	return p, apiVersion, err
}

func readProtoProbe(body []byte) (p Probe, apiVersion string, err error) {
	kind, meta, err := ReadProtoList(bytes.NewReader(body), func([]byte) {})
	if err != nil {
		return p, "", err
	}
	p.ListKind = kind.Kind
	p.RV, err = object.ParseResourceVersion(meta.ResourceVersion)
	return p, kind.APIVersion, err
}

// nothing returns the path and the query of the cheapest list within a resource's scope. The list
// matches no object, unless the scope is a single object: no other list may be allowed then.
func nothing(r *object.Resource) (path string, query url.Values) {
	query = within(r.Scope, url.Values{})
	if r.Namespaced && r.Scope.Namespace == "" {
		return ResourcePath(r.GVR, NoSuchNamespace), query
	}
	selector, err := fields.ParseSelector(r.Scope.Fields)
	if _, single := selector.RequiresExactMatch("metadata.name"); err == nil && !single {
		none := fields.OneTermEqualSelector("metadata.name", NoSuchName)
		query.Set("fieldSelector", fields.AndSelectors(none, selector).String())
	}
	return ResourcePath(r.GVR, r.Scope.Namespace), query
}

// ProbeTimeout limits a probe that no reader waits for.
const ProbeTimeout = 10 * time.Second
