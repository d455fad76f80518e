package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// This file brings a cache to the revision that upstream returned.
//
// A quiet collection gets a bookmark only once a minute. A watch with timeoutSeconds=3 gets one
// after about a second, at the revision of a probe that was sent before, if the probe was of
// the same resource: the probe, a consistent read, makes the apiserver ask etcd for the progress of
// that resource's watch. The apiserver's cache has everything that the probe saw, so a list not
// older than that does not wait.
//
// A timer of one second sends this bookmark, so it may take two seconds and a quarter. A metadata
// list of six thousand objects in protobuf took some 25 ms, for a megabyte, and shows just as well
// that nothing has happened. So the run tries that first.

// moved is the outcome of a run that only checked, and found that the cache needs help.
const moved = "moved"

var errMoved = errors.New("others have written since")

// reach waits until readers see a state at or above rv. If the stream does not bring it, reach may
// help.
func (f *Feed) reach(ctx context.Context, q *question, help bool) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stats := f.cache.Stats()
	if stats.Newest >= q.rv {
		return "current", nil
	}
	small := isSmall(stats)
	patience := largePatience
	if small {
		patience = streamPatience
	}
	if outcome := f.settles(ctx, *q, patience); outcome != "" {
		return outcome, nil
	}
	if !help {
		return "", errMoved
	}
	select {
	case f.fresh.helping <- struct{}{}:
		defer func() { <-f.fresh.helping }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if f.reaches(ctx, q.rv, 0) {
		return "shared", nil // the run before brought it
	}
	if q.aside {
		// A probe of the resource itself makes upstream bring its own cache up to date.
		_ = f.probes.Wait(ctx)
		p, err := f.probe(ctx)
		if err != nil {
			return "", err
		}
		if p.RV < q.rv {
			f.keeper.ledger.Forget() // the two resources are not in the same etcd
		}
		if p.RV < stats.Newest {
			err = fmt.Errorf("%w: from %d to %d", errWentBack, stats.Newest, p.RV)
			f.interrupt(err)
			return "", err
		}
		q.rv, q.aside = p.RV, false
		if f.reaches(ctx, q.rv, patience) {
			return "stream", nil
		}
	}
	rv := q.rv
	if small {
		_, err := f.fastForward(ctx, rv)
		return "list", err
	}
	if stats.Objects <= confirmObjects {
		same, err := f.confirm(ctx, rv)
		if same {
			return "metadata", nil
		}
		if err != nil {
			f.log.Debug("metadata could not be listed", zap.Error(err))
		}
	}
	if f.cache.Resource().NoWatchCache {
		return "", errors.New("upstream sends no bookmarks for the resource")
	}
	return "side-watch", f.sideWatch(ctx, rv)
}

func isTiny(s watchcache.Stats) bool { return s.Objects <= tinyObjects && s.Bytes <= tinyBytes }

func isSmall(s watchcache.Stats) bool { return s.Objects <= smallObjects && s.Bytes <= smallBytes }

// proved is the outcome of a run that the ledger alone answered.
const proved = "ledger"

// settles waits until the ledger or the stream shows the state of q, and returns which one did.
func (f *Feed) settles(ctx context.Context, q question, patience time.Duration) (outcome string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for first := true; ; first = false {
		noted := f.keeper.ledger.Wait()
		if f.proved(q) {
			return proved
		}
		if first {
			waiting.Go(func() {
				if _, err := f.cache.WaitFresh(ctx, q.rv); err == nil {
					close(stream)
				}
			})
		}
		select {
		case <-noted:
		case <-stream:
			return "stream"
		case <-ctx.Done():
			return ""
		}
	}
}

// proved marks the newest state as current as of q, if the ledger proves that.
func (f *Feed) proved(q question) bool {
	_, epoch := f.standing()
	newest := f.cache.Stats().Newest
	if newest >= q.rv || !f.carries(q.era) || !f.keeper.ledger.Proves(q.era, f.owner, newest, q.rv) {
		return false
	}
	carried := false
	err := f.write(epoch, func() error {
		carried = f.cache.Carry(newest, q.rv)
		return nil
	})
	return err == nil && carried
}

func (f *Feed) reaches(ctx context.Context, rv uint64, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := f.cache.WaitFresh(ctx, rv)
	return err == nil
}

// fastForward lists the collection: the most recent state, or with rv set one
// that is not older than rv, which upstream's cache already has.
func (f *Feed) fastForward(ctx context.Context, rv uint64) (at uint64, err error) {
	_, epoch := f.standing()
	before := f.cache.Stats()
	query := url.Values{}
	if rv > 0 {
		query = url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}, "resourceVersionMatch": {"NotOlderThan"}}
	}
	done := f.metrics.spend("list")
	p, err := f.client.Page(ctx, f.cache.Resource(), query)
	done()
	switch {
	case err != nil:
		return 0, err
	case p.RV < rv:
		return 0, fmt.Errorf("upstream listed at %d, asked for %d", p.RV, rv)
	case p.Next != "":
		return 0, client.ErrPartial
	}
	f.fresh.quiet.Store(p.RV > before.Newest && len(p.Changes) == before.Objects &&
		!slices.ContainsFunc(p.Changes, func(c watchcache.Change) bool { return c.Object.ResourceVersion() > before.Newest }))
	err = f.write(epoch, func() error { return f.cache.FastForward(compact(p.Changes), p.RV) })
	if errors.Is(err, watchcache.ErrDiverged) {
		f.interrupt(err) // it relists
	}
	return p.RV, err
}

// sideWatch watches from the log's end and applies all events that the main stream still owes, up
// to a bookmark. The cache drops the main stream's copies as repeats.
func (f *Feed) sideWatch(ctx context.Context, rv uint64) error {
	from, epoch := f.standing()
	ctx, cancel := context.WithTimeout(ctx, (sideWatchSeconds+1)*time.Second)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		defer cancel() // after the bookmark, or too late
		_, _ = f.cache.WaitFresh(ctx, rv)
	}()
	defer func() {
		cancel()
		<-waited
	}()
	resp, err := f.client.GetAs(ctx, client.MimeOf(f.encoding), "side-watch", f.gvr, client.ResourcePath(f.gvr, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {strconv.FormatUint(from, 10)},
		"timeoutSeconds":  {strconv.Itoa(sideWatchSeconds)},
	})
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
		err = f.consume(client.NewStream(resp.Body, f.cache.Resource()), epoch, func() {})
	}
	if f.reaches(ctx, rv, 0) {
		return nil
	}
	return fmt.Errorf("side watch from %d did not reach %d: %w", from, rv, err)
}
