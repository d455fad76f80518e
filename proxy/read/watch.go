package read

import (
	"context"
	"errors"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// feedAgent is the User-Agent of every proxy's feeds (client.UserAgent). The feeds of another proxy
// may be clients of this proxy.
const feedAgent = "watchproxy"

func (rd *Reader) watch(ctx context.Context, r *read) (*exchange.Response, error) {
	if r.resource.NoWatchCache && r.RV >= math.MaxInt64 {
		return nil, Parameters // larger than any revision in etcd
	}
	if r.Bookmarks && r.WithState() && r.cache.Bookmark() == nil {
		return nil, Stale // the form of the final bookmark is still unknown
	}
	metadata := r.choice.Partial || r.choice.Table
	if _, noted := r.cache.Notes.Load(unwritable{}); metadata && noted {
		return nil, OtherForm
	}
	p, err := r.begin(ctx)
	owner := &owner{
		reader:   rd,
		cache:    r.cache,
		rows:     r.rows,
		metadata: metadata,
	}
	if err == nil && r.rows != nil {
		p.Meter, p.Rows = &r.meter, r.rows
		owner.feed, err = rd.watchRows(r, p.Start)
		if err != nil {
			abandon(&p)
		}
		if err != nil && r.WithState() {
			err = Stale // the history of the rows begins after the state
		}
	}
	tooOld, expired := errors.AsType[*watchcache.TooOldError](err)
	tooLarge, ahead := errors.AsType[*tooLargeError](err)
	switch {
	case ahead:
		return r.errorEvent(tooLarge.status, rd.gzipsWatch(r)), nil
	case expired && !tooOld.Gap:
		r.expired = r.errorEvent(watch.Expired(r.cache, tooOld), false)
		return nil, TooOldWatch
	case expired:
		return r.errorEvent(watch.Expired(r.cache, tooOld), false), nil
	case errors.Is(err, grants.ErrUnreviewed), errors.Is(err, grants.ErrTooMany):
		return nil, err
	case err != nil:
		if _, ok := errors.AsType[Reason](err); !ok {
			err = Stale
		}
		return nil, err
	}
	if r.Header.Get("User-Agent") == feedAgent {
		p.Cursor.WholeHistory()
	}
	done, refusal := rd.Limits.AdmitWatch(r.Request)
	if refusal != nil {
		abandon(&p)
		owner.release()
		return refusal, nil
	}
	owner.done = done
	p.Owner = owner
	p.Cache, p.Form, p.Choice, p.Cost = r.cache, r.form, r.choice, r.cost()
	p.Bookmarks, p.Anew = r.Bookmarks, r.narrowing != nil
	p.Lifetime, p.DrainShare = time.Duration(r.WatchSeconds)*time.Second, rd.Life.DrainShare()
	p.Lag = rd.Metrics.Lag(r.plan.Route)
	p.Server = watch.Server{Events: &rd.events, Draining: rd.Life.Draining()}
	if !r.form.Verbatim() {
		p.Room = eventRoom{rd.Memory, r.User(), rd.Life.Draining()}
	}
	if r.Identity != nil {
		o := rd.Options()
		p.Recheck = o.Recheck
		owner.right = &grants.Right{
			Access:    o.Access,
			Sender:    r.Credentials(),
			Asked:     r.asked(r.Path),
			Narrowing: r.narrowing,
		}
	}
	resp := r.respond()
	resp.Header.Set("Content-Type", r.form.StreamType())
	if rd.gzipsWatch(r) {
		gzipped(resp)
		p.Compressed = true
		if p.Initial != nil && !r.selective() && r.rows == nil {
			p.Initial.Derived = r.derived
		}
	}
	resp.Body = watch.New(p)
	return resp, nil
}

func (r *read) begin(ctx context.Context) (p watch.Params, err error) {
	p.Filter = r.filter
	if p.Start = r.Since(r.Name); p.Start != 0 {
		p.Cursor, err = r.cache.Watch(p.Filter, p.Start)
		return p, err
	}
	initial, err := r.fresh(ctx)
	if err == nil {
		p.Grants, err = r.decideGrants(initial)
	}
	if err != nil {
		return p, err
	}
	p.Start = initial.ResourceVersion()
	if r.WithState() {
		p.Initial = &watch.Initial{Selected: r.selected(), State: initial.Tree}
		p.Meter = &r.meter
	}
	if p.Grants != nil {
		p.Filter = p.Grants.Narrow(r.filter)
	}
	p.Cursor, err = r.cache.WatchAfter(p.Filter, initial)
	if err != nil && p.Grants != nil {
		p.Grants.Close()
	}
	return p, err
}

func abandon(p *watch.Params) {
	p.Cursor.Close()
	if p.Grants != nil {
		p.Grants.Close()
	}
}

func (rd *Reader) gzipsWatch(r *read) bool {
	return r.Gzip && rd.Options().Compression.Includes(r.Bookmarks && r.WithState() &&
		r.feed.CompressesWatches())
}

func (r *read) errorEvent(status metav1.Status, compressed bool) *exchange.Response {
	resp := r.respond()
	resp.Header.Set("Content-Type", r.form.StreamType())
	resp.MetricStatus = int(status.Code)
	event := r.form.AppendError(nil, &status)
	if compressed {
		event = wire.GzipBody(event)
		gzipped(resp)
	}
	resp.Body = &watch.OnlyError{Event: event}
	return resp
}

// eventRoom has memory for the large events of a user's watch. The watch's request has ended when
// its events come.
type eventRoom struct {
	of       *fair.Pool
	user     string
	draining context.Context //nolint:containedctx // it is the server's
}

func (r eventRoom) Hold(size int64) error {
	return r.of.Holding(r.user).Take(r.draining, size)
}

func (r eventRoom) Free(size int64) { r.of.Give(r.user, size) }

// owner is what an open watch keeps of its read.
type owner struct {
	reader   *Reader
	right    *grants.Right // nil if there are no reviews
	cache    *watchcache.Cache
	metadata bool               // the form has only metadata, or is a Table
	rows     *table.Rows        // of a Table
	feed     *watchcache.Cursor // keeps the feed of the rows running
	done     func()             // gives back what the watch was admitted with
}

var errPanicked = errors.New("panic in a review")

// Review implements watch.Owner. A panic counts as a failed review.
func (o *owner) Review(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			o.reader.Metrics.Panicked(o.reader.Log, "review", p)
			err = errPanicked
		}
	}()
	return o.right.Review(ctx)
}

func (o *owner) Unwritable() {
	if o.metadata && (o.rows == nil || !o.rows.Failed()) {
		o.cache.Notes.Store(unwritable{}, nil)
	}
}

func (o *owner) Done() {
	o.release()
	o.done()
}

func (o *owner) release() {
	if o.feed != nil {
		o.feed.Close()
	}
}

// unwritable is the note on a cache with an object that a watch of metadata or of Tables could not
// write: its metadata has fields that are not known here, as those of a newer apiserver. The client
// of such a watch comes again with the same resourceVersion, so upstream must answer it.
type unwritable struct{}
