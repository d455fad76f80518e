package read

import (
	"context"
	"math"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// list answers a list. The parameters resourceVersion (RV), resourceVersionMatch (match), limit and
// continue select the state:
//
//	match            RV       limit   continue   state
//	–                –        any     –          the most recent
//	–                –        any     RV > 0     exactly the token's
//	–                –        any     RV < 0     the most recent, from the token's key on
//	–, NotOlderThan  0        any     –          any; the limit is ignored, as it is upstream
//	–                N        none    –          not older than N
//	–                N        > 0     –          exactly N
//	NotOlderThan     N        any     –          not older than N
//	Exact            N        any     –          exactly N
//
// Upstream answers all other combinations.
func (r *read) list(ctx context.Context) (*exchange.Response, error) {
	from, to := r.filter.KeyRange(r.resource)
	switch {
	case r.Token != "":
		return r.continued(ctx, from, to)
	case !r.RVGiven && r.Match != "":
		return nil, Parameters
	case r.Limit > 0 && r.RVGiven && r.RV == 0 && r.resource.NoWatchCache && !r.Alone:
		return nil, Parameters // upstream reads etcd, which handles limits differently
	case r.RVGiven && r.RV == 0 && (r.Match == "" || r.Match == "NotOlderThan"):
		r.Limit = 0
		return r.notOlderThan(ctx, from, to)
	case r.Limit > 0 && !r.Alone && (r.filter.Single() && r.RVGiven || r.Pinned(r.plan.Route)):
		return nil, Page // upstream reads etcd, or reads the page from one namespace
	case r.Match == "" && r.Limit == 0, r.Match == "NotOlderThan" || !r.RVGiven:
		return r.notOlderThan(ctx, from, to)
	case r.Match == "Exact" && r.RV > 0 && (r.Alone || !r.filter.Single()),
		r.Match == "" && r.RV > 0:
		if _, err := r.fresh(ctx); err != nil {
			return nil, err
		}
		return r.exact(r.RV, from, to)
	}
	return nil, Parameters
}

func (r *read) continued(ctx context.Context, from, to string) (*exchange.Response, error) {
	if r.RVGiven || r.Match != "" || r.filter.Single() {
		return nil, Parameters
	}
	token := r.Token
	if r.narrowing != nil {
		token, _ = grants.Unseal(token)
	}
	start, rv, err := exchange.DecodeToken(token)
	if err != nil {
		return nil, Parameters
	}
	from = max(from, r.prefix()+start)
	if rv < 0 {
		return r.notOlderThan(ctx, from, to)
	}
	return r.exact(uint64(rv), from, to)
}

func (r *read) prefix() string {
	if r.Namespace == "" || !r.resource.Namespaced {
		return ""
	}
	return r.Namespace + "/"
}

func (r *read) notOlderThan(ctx context.Context, from, to string) (*exchange.Response, error) {
	snapshot, err := r.fresh(ctx)
	if err == nil {
		_, err = r.decideGrants(snapshot)
	}
	if err != nil {
		return nil, err
	}
	return r.page(snapshot, from, to)
}

func (r *read) exact(rv uint64, from, to string) (*exchange.Response, error) {
	snapshot, err := r.cache.SnapshotAt(rv)
	if err != nil {
		return nil, TooOld
	}
	if _, err := r.decideGrants(snapshot); err != nil {
		return nil, err
	}
	return r.page(snapshot, from, to)
}

func (r *read) page(snapshot watchcache.Snapshot, from, to string) (*exchange.Response, error) {
	r.listed = snapshot.ResourceVersion()
	meta := wire.ListMeta{ResourceVersion: r.listed}
	items := derived.ListItems{Separator: r.form.Separator()}
	last := r.collect(snapshot, from, to, &items)
	if r.meter.Failed() != nil {
		return nil, r.meter.Failed()
	}
	if r.rows != nil && items.Count == 0 && r.rows.Empty() == "" {
		return nil, OtherTable
	}
	if last != nil && !r.filter.Single() {
		s := r.resource.Scope
		narrower := s.Namespace != "" && s.Namespace != r.Namespace
		if !r.Alone && (s.Selects() || narrower) {
			return nil, Page // objects outside of the scope may follow
		}
		// Upstream counts all remaining objects in the collection, selected or not.
		_, end := r.resource.KeyRange(r.Namespace)
		if rest := int64(r.selected().Count(snapshot.Tree, last.Key()+"\x00", end)); rest > 0 {
			if r.Indexed() && !r.Alone {
				return nil, Page
			}
			from, at := last.Key()[len(r.prefix()):], snapshot.ResourceVersion()
			token := exchange.EncodeToken(from, at, r.resource.NoWatchCache)
			meta.Continue = token + r.narrowing.Seal()
			if !r.filter.Selective() {
				meta.Remaining = &rest
			}
		}
	}
	return r.render(meta, &items)
}

// collect selects the items of a page. It returns the last item if the limit ended the page.
func (r *read) collect(
	snapshot watchcache.Snapshot, from, to string, items *derived.ListItems,
) *object.Object {
	room := r.Limit
	if room == 0 {
		room = math.MaxInt64
	}
	for span := range r.selected().Spans(snapshot.Tree, from, to) {
		objects := span.Objects()
		if n := int64(len(objects)); n >= room {
			span.Hi = span.Lo + int(room)
			items.Add(span)
			return objects[room-1]
		}
		items.Add(span)
		room -= int64(len(objects))
	}
	return nil
}
