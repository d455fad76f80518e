package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// source is where a plan's answer comes from, and the form in which it is written.
type source struct {
	feed     Feed
	cache    *watchcache.Cache
	resource *object.Resource
	filter   *object.Filter
	choice   wire.Choice
	form     wire.Form
	rows     *table.Rows // for a Table
	warnings []string
}

// answersGet reports whether the cache may answer a get of the most recent state. A Table might
// need a new feed of rows.
func (rd *Reader) answersGet(p *plan) bool {
	return len(p.Choices) > 0 && !p.Choices[0].Table &&
		rd.Feeds.AnswersGets(p.GVR, p.want(), exchange.KeptAs(p.Choices[0]))
}

// open tries the choices in order and opens the feed of the first choice that has a cache.
func (rd *Reader) open(ctx context.Context, p *plan) (s source, err error) {
	for _, choice := range p.Choices {
		s, err = rd.openFeed(ctx, p, choice)
		switch {
		case errors.Is(err, object.ErrNoEncoding):
			continue
		case errors.Is(err, watchcache.ErrNoProgress):
			return s, NoProgress
		case errors.Is(err, watchcache.ErrNotReady):
			return s, Stale
		case err != nil:
			return s, cmp.Or(reasonOf(err), Uncached)
		}
		if err := s.prepare(p); err != nil {
			return s, err
		}
		err = rd.allowStale(p, &s)
		return s, err
	}
	return s, OtherForm
}

// openPlain opens the feed of a form that the client accepts as well, because only upstream could
// make the other one, and it has no such list. includeObject means nothing for this form. Without
// such a form, openPlain returns the error of the other one.
func (rd *Reader) openPlain(
	ctx context.Context, req *exchange.Request, p plan, err error,
) (source, error) {
	accept, ok := wire.AcceptsPlain(req.Header.Get("Accept"))
	if !ok {
		return source{}, err
	}
	p.IncludeGiven = false
	p.negotiate(req, accept)
	return rd.open(ctx, &p)
}

// openFeed opens the feed for a choice. For a Table, it also opens the feed of the rows. Custom
// resources have no protobuf feed, but their metadata can be written in protobuf.
func (rd *Reader) openFeed(ctx context.Context, p *plan, choice wire.Choice) (s source, err error) {
	ctx, cancel := context.WithTimeout(ctx, rd.patience(p))
	defer cancel()
	s.choice = choice
	switch {
	case choice.Table && !table.Forwarded(p.GVR.GroupResource()):
		s.feed, s.rows, err = rd.openTable(ctx, p)
		return s, err
	case choice.Table:
		return s, OtherTable
	case p.IncludeGiven:
		return s, Parameters
	case choice.Partial && object.InternalMetadata(p.GVR):
		return s, OtherForm
	case choice.MediaType == wire.Protobuf:
		s.feed, err = rd.Feeds.Open(ctx, p.GVR, p.want(), object.Protobuf, p.Since(p.Name))
		if !choice.Partial || !errors.Is(err, object.ErrNoEncoding) {
			return s, err
		}
	}
	s.feed, err = rd.Feeds.Open(ctx, p.GVR, p.want(), object.JSON, p.Since(p.Name))
	return s, err
}

// patience returns how long a read waits for a cache that is filled. An object or a page costs
// upstream far less than the whole collection, which may take minutes.
func (rd *Reader) patience(p *plan) time.Duration {
	most := rd.Options().SyncTimeout
	page := p.Kind == wire.List && p.Limit > 0 && (!p.RVGiven || p.RV > 0)
	if !p.Alone && (page || p.Kind == wire.Get) {
		const part = 10
		most /= part
	}
	return most
}

func (s *source) prepare(p *plan) (err error) {
	s.cache, s.warnings = s.feed.Cache(), s.feed.Warnings()
	s.resource = s.cache.Resource()
	if s.resource.Namespaced {
		if p.Name != "" && p.Namespace == "" {
			return NotARead // upstream has no such path
		}
	} else if p.Namespace != "" && !p.IsNamespace() {
		return NotARead
	}
	namespace := p.Namespace
	if !s.resource.Namespaced {
		namespace = ""
	}
	if s.filter, err = object.NewFilter(s.resource, namespace, p.Labels, p.Fields); err != nil {
		return Parameters
	}
	kind := wire.Kind{
		Kind:       s.resource.Kind,
		ListKind:   s.resource.ListKind,
		APIVersion: s.resource.APIVersion(),
		Sorted:     s.resource.SelfDescribing,
		Protobuf:   s.resource.Encoding == object.Protobuf,
	}
	if s.rows != nil {
		s.form = wire.NewTable(kind, p.RowObjects, s.rows, s.choice.Fields)
	} else {
		s.form = wire.NewForm(s.choice, kind)
	}
	return nil
}

// LostGrace is the time for which upstream may be lost without a warning: most streams recover.
const LostGrace = time.Second

// allowStale decides whether an out-of-date cache may answer. It forwards a read of the most recent
// state, because upstream may be back.
func (rd *Reader) allowStale(p *plan, s *source) error {
	age, lost := s.feed.Lost()
	switch {
	case !lost || age < LostGrace:
		return nil
	case rd.Options().MaxStaleness > 0 && age > rd.Options().MaxStaleness, p.MostRecent():
		return Lost
	}
	why := ""
	if rd.Feeds.Lost(p.GVR) == 0 {
		why = ", as it answers with errors"
	}
	text := fmt.Sprintf(
		"watchproxy has not followed the apiserver for %s%s: this may be out of date",
		age.Truncate(time.Second), why,
	)
	s.warnings = append(slices.Clip(s.warnings), fmt.Sprintf("299 - %q", text))
	return nil
}

// endOf returns the last bytes of a span's items, to which the next compressed segment may refer.
// They start at the span's start or later, because the items before it differ between lists. In a
// Table they start after the last age, because ages may have changed meanwhile.
func (s *source) endOf(span tree.Span) (end []byte, err error) {
	if span.Page == nil {
		return nil, nil
	}
	if s.rows != nil {
		end, err = derived.Items(s.form, tree.Span{
			Page: span.Page,
			Lo:   span.Hi - 1,
			Hi:   span.Hi,
		}, true)
		return end[min(s.rows.AgesEnd(), len(end)):], err
	}
	return derived.EndOf(s.form, span)
}

// cost is how often the bytes of an item are touched for the form.
func (s *source) cost() int64 {
	if s.resource.SelfDescribing && !s.form.Verbatim() {
		return fair.Decode
	}
	return 1
}

func (s *source) unwritable(err error) error {
	if _, missing := errors.AsType[*table.MissingRowError](err); missing {
		return err
	}
	if s.rows != nil {
		return OtherTable
	}
	return OtherForm
}
