package client

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// PageSize is the limit of a paged list. Pages keep memory use flat while the proxy reads a large
// collection.
const PageSize = 500

// At returns the query for the state at a resourceVersion. match is "Exact" or "NotOlderThan". If
// rv is 0, the query requests the most recent state.
func At(rv uint64, match string) url.Values {
	if rv == 0 {
		return url.Values{}
	}
	return url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}, "resourceVersionMatch": {match}}
}

// ListedAt returns the error for a list whose resourceVersion rv does not match the requested
// resourceVersion.
func ListedAt(rv, asked uint64) error {
	return fmt.Errorf("upstream listed at %d, asked for %d", rv, asked)
}

// List reads a collection in pages. It is the fallback if upstream cannot stream its state. If
// notOlderThan is 0, it requests the most recent state.
func (c *Client) List(ctx context.Context, r *object.Resource, notOlderThan uint64) (changes []watchcache.Change, rv uint64, err error) {
	return c.pages(ctx, r, At(notOlderThan, "NotOlderThan"))
}

// ListAt reads a collection as it was at a resourceVersion.
func (c *Client) ListAt(ctx context.Context, r *object.Resource, rv uint64) ([]watchcache.Change, error) {
	changes, at, err := c.pages(ctx, r, At(rv, "Exact"))
	if err == nil && at != rv {
		err = ListedAt(at, rv)
	}
	return changes, err
}

// EachPage calls f with each page of a collection, until f fails. The query is that of the first page.
func (c *Client) EachPage(ctx context.Context, r *object.Resource, query url.Values, f func(ListPage) error) error {
	return pages(query, PageSize, func(query url.Values) (next string, err error) {
		page, err := c.Page(ctx, r, query)
		if err == nil {
			err = f(page)
		}
		return page.Next, err
	})
}

func (c *Client) pages(ctx context.Context, r *object.Resource, query url.Values) (changes []watchcache.Change, rv uint64, err error) {
	err = c.EachPage(ctx, r, query, func(page ListPage) error {
		changes, rv = append(changes, page.Changes...), page.RV
		return nil
	})
	return changes, rv, err
}

// pages reads all pages of a list.
func pages(query url.Values, limit int, read func(url.Values) (next string, err error)) error {
	for {
		query.Set("limit", strconv.Itoa(limit))
		next, err := read(query)
		if err != nil || next == "" {
			return err
		}
		query = url.Values{"continue": {next}}
	}
}

// ListPage is a page of a list.
type ListPage struct {
	Changes []watchcache.Change
	RV      uint64
	Next    string // the continue token
}

// Page reads a page of a list. If the query has no limit, the page is the whole list.
func (c *Client) Page(ctx context.Context, r *object.Resource, query url.Values) (ListPage, error) {
	resp, err := c.GetCollection(ctx, AcceptOf(r.Encoding), "list", r, query)
	if err != nil {
		return ListPage{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ListPage{}, fmt.Errorf("list upstream: %w", err)
	}
	if err := CheckEncoding(resp, r.Encoding); err != nil {
		return ListPage{}, err
	}
	switch r.Encoding {
	case object.Protobuf:
		return protoPage(r, body)
	case object.Table:
		return tablePage(r, body)
	}
	return jsonPage(r, body)
}

func tablePage(r *object.Resource, body []byte) (p ListPage, err error) {
	rows, meta, err := r.ParseTable(body)
	if err != nil {
		return ListPage{}, err
	}
	for _, o := range rows {
		p.Changes = append(p.Changes, watchcache.Change{Object: o})
	}
	p.Next = meta.Get("continue").Str
	p.RV, err = object.ParseResourceVersion(meta.Get("resourceVersion").Str)
	return p, err
}

func protoPage(r *object.Resource, body []byte) (p ListPage, err error) {
	kind, meta, items, err := readProtoList(body)
	if err != nil {
		return ListPage{}, err
	}
	if kind.APIVersion != r.APIVersion() || r.ListKind != "" && kind.Kind != r.ListKind {
		return ListPage{}, fmt.Errorf("%w: %v is no %s", object.ErrMalformed, kind, r.ListKind)
	}
	p.Next = meta.Continue
	if p.RV, err = object.ParseResourceVersion(meta.ResourceVersion); err != nil {
		return ListPage{}, err
	}
	for _, item := range items {
		o, err := r.ParseObject(item)
		if err != nil {
			return ListPage{}, err
		}
		p.Changes = append(p.Changes, watchcache.Change{Object: o})
	}
	return p, nil
}

func jsonPage(r *object.Resource, body []byte) (p ListPage, err error) {
	if !gjson.ValidBytes(body) {
		return ListPage{}, fmt.Errorf("%w: list of %s is not JSON", object.ErrMalformed, r.GVR.Resource)
	}
	list := gjson.ParseBytes(body)
	p.Next = list.Get("metadata.continue").Str
	if p.RV, err = object.ParseResourceVersion(list.Get("metadata.resourceVersion").Str); err != nil {
		return ListPage{}, err
	}
	items := list.Get("items")
	if !items.IsArray() && items.Type != gjson.Null || list.Get("apiVersion").Str != r.APIVersion() || r.ListKind != "" && list.Get("kind").Str != r.ListKind {
		return ListPage{}, fmt.Errorf("%w: %.200s is no %s", object.ErrMalformed, body, r.ListKind)
	}
	items.ForEach(func(_, item gjson.Result) bool {
		var o *object.Object
		if o, err = r.ParseObject([]byte(item.Raw)); err == nil {
			p.Changes = append(p.Changes, watchcache.Change{Object: o})
		}
		return err == nil
	})
	return p, err
}
