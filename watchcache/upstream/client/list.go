package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// PageSize is the largest limit of a paged list.
	PageSize = 500
	// pageBytes is how much upstream should have to write for a page. pageLeast is the smallest
	// limit: a few large objects may not be typical of all.
	pageBytes, pageLeast = 8 << 20, 20
)

func pageLimit(s watchcache.Stats) int {
	mean := s.Bytes / int64(max(1, s.Objects))
	return int(min(PageSize, max(pageLeast, pageBytes/max(1, mean))))
}

// At returns the query for the state at a resourceVersion. match is "Exact" or "NotOlderThan". If
// rv is 0, the query requests the most recent state.
func At(rv uint64, match string) url.Values {
	if rv == 0 {
		return url.Values{}
	}
	at := strconv.FormatUint(rv, 10)
	return url.Values{"resourceVersion": {at}, "resourceVersionMatch": {match}}
}

// ListedAt returns the error for a list that has another resourceVersion than asked for.
func ListedAt(rv, asked uint64) error {
	return fmt.Errorf("upstream listed at %d, asked for %d", rv, asked)
}

const exact = "Exact"

// List reads a collection in pages. The query is that of [At]. List returns the cached object in
// place of an equal one, so a relist needs memory only for what has changed.
func (c *Client) List(
	ctx context.Context, cache *watchcache.Cache, rv uint64, match string,
) (changes []watchcache.Change, at uint64, err error) {
	at, err = c.EachPage(ctx, cache, rv, match, func(o *object.Object) error {
		changes = append(changes, watchcache.Change{Object: cache.Known(o)})
		return nil
	})
	return changes, at, err
}

// EachPage reads a cache's collection in pages and calls each with the objects as [Client.Page]
// does. The query is that of [At]. It returns the resourceVersion of the list.
func (c *Client) EachPage(
	ctx context.Context, cache *watchcache.Cache, rv uint64, match string,
	each func(*object.Object) error,
) (at uint64, err error) {
	limit := pageLimit(cache.Stats())
	err = pages(At(rv, match), limit, func(query url.Values) (next string, err error) {
		page, err := c.Page(ctx, cache.Resource(), query, each)
		if err == nil && match == exact && page.RV != rv {
			err = ListedAt(page.RV, rv)
		}
		at = page.RV
		return page.Next, err
	})
	return at, err
}

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

// ListPage is a page of a list, without its objects.
type ListPage struct {
	RV   uint64
	Next string // the continue token
}

// Page reads a page of a list. If the query has no limit, the page is the whole list. Page calls
// each with the objects as they arrive, and keeps none of them. After an error of each, it reads
// the rest of the page without further calls. The objects count only if Page returns no error.
func (c *Client) Page(
	ctx context.Context, r *object.Resource, query url.Values, each func(*object.Object) error,
) (ListPage, error) {
	resp, err := c.GetCollection(ctx, AcceptOf(r.Encoding), "list", r, query)
	if err != nil {
		return ListPage{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if err := CheckEncoding(resp, r.Encoding); err != nil {
		return ListPage{}, err
	}
	return readPage(r, resp.Body, each)
}

func readPage(
	r *object.Resource, body io.Reader, each func(*object.Object) error,
) (p ListPage, err error) {
	var failed error
	item := func(src []byte) {
		var o *object.Object
		switch {
		case failed != nil:
			return
		case r.Encoding == object.Table:
			o, failed = r.ParseRow(gjson.ParseBytes(src))
		default:
			o, failed = r.ParseObject(src)
		}
		if failed == nil {
			failed = each(o)
		}
	}
	if r.Encoding == object.Protobuf {
		kind, meta, err := ReadProtoList(body, item)
		if err == nil {
			p, err = listPage(r, kind, meta)
		} else if !errors.Is(err, object.ErrMalformed) {
			err = fmt.Errorf("list upstream: %w", err)
		}
		return p, cmp.Or(err, failed)
	}
	items := "items"
	if r.Encoding == object.Table {
		items = "rows"
	}
	src, err := readJSONItems(body, items, item)
	switch {
	case errors.Is(err, errNotJSON):
		err = object.Malformed("list of %s is not JSON", r.GVR.Resource)
	case err != nil:
		err = fmt.Errorf("list upstream: %w", err)
	case r.Encoding == object.Table:
		p, err = tablePage(r, src)
	default:
		p, err = jsonPage(r, src)
	}
	return p, cmp.Or(err, failed)
}

func tablePage(r *object.Resource, src []byte) (p ListPage, err error) {
	meta, err := r.ParseTable(src)
	if err != nil {
		return ListPage{}, err
	}
	p.Next = meta.Get("continue").Str
	p.RV, err = object.ParseResourceVersion(meta.Get("resourceVersion").Str)
	return p, err
}

func jsonPage(r *object.Resource, src []byte) (p ListPage, err error) {
	top := gjson.ParseBytes(src)
	kind := runtime.TypeMeta{Kind: top.Get("kind").Str, APIVersion: top.Get("apiVersion").Str}
	p, err = listPage(r, kind, metav1.ListMeta{
		Continue:        top.Get("metadata.continue").Str,
		ResourceVersion: top.Get("metadata.resourceVersion").Str,
	})
	if items := top.Get("items"); err == nil && items.Exists() && !items.IsArray() {
		err = object.Malformed("items are %.200s", items.Raw)
	}
	return p, err
}

func listPage(
	r *object.Resource, kind runtime.TypeMeta, meta metav1.ListMeta,
) (p ListPage, err error) {
	p.Next = meta.Continue
	p.RV, err = object.ParseResourceVersion(meta.ResourceVersion)
	other := r.ListKind != "" && kind.Kind != r.ListKind
	if err == nil && (other || kind.APIVersion != r.APIVersion()) {
		err = object.Malformed("%v is no %s", kind, r.ListKind)
	}
	return p, err
}
