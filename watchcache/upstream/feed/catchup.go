package feed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// AskTimeout limits the wait for a response from upstream.
	AskTimeout = 5 * time.Second
	// SmallObjects and smallBytes limit a small collection, which is listed as a whole.
	SmallObjects = 500
	smallBytes   = 1 << 20
	// sideWatchSeconds makes upstream send a bookmark after one to two seconds. It is scheduled two
	// seconds before the watch times out, on a timer with a period of one second.
	sideWatchSeconds = 3
)

// IsSmall reports whether a collection is listed as a whole to catch up.
func IsSmall(s watchcache.Stats) bool { return s.Objects <= SmallObjects && s.Bytes <= smallBytes }

// CatchUp brings a cache to a given upstream revision faster than the main stream, which gives a
// quiet collection one bookmark a minute. A side watch is a second watch that ends soon, so its
// bookmark comes soon (see sideWatchSeconds). The bookmark has the revision of the preceding probe,
// because the probe makes the apiserver ask etcd for the progress of this resource's watch. Its
// cache has then reached that revision, so a list of a state not older than that does not wait.
type CatchUp struct {
	*Collection
	writer *Writer
	main   *MainStream
}

// To brings the cache to rv or later. It returns the kind of request that succeeded.
func (c *CatchUp) To(ctx context.Context, rv uint64) (by string, err error) {
	if IsSmall(c.writer.cache.Stats()) {
		return "list", c.fastForward(ctx, rv)
	}
	if c.writer.cache.Resource().NoWatchCache {
		return "", errors.New("upstream sends no bookmarks for the resource")
	}
	return "side-watch", c.sideWatch(ctx, rv)
}

// Probe reads upstream's revision. If that revision is below a revision that readers of the cache
// have seen, Probe returns [ErrWentBack].
func Probe(ctx context.Context, c *client.Client, cache *watchcache.Cache) (rv uint64, err error) {
	known := cache.Stats().Newest
	p, err := c.Probe(ctx, "probe", cache.Resource())
	if err == nil && p.RV < known {
		err = fmt.Errorf("%w: from %d to %d", ErrWentBack, known, p.RV)
	}
	return p.RV, err
}

// Reaches reports whether readers see a state at rv or later within patience.
func Reaches(ctx context.Context, cache *watchcache.Cache, rv uint64, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := cache.WaitFresh(ctx, rv)
	return err == nil
}

// fastForward lets readers see a listed state. Upstream's cache must already have reached rv.
func (c *CatchUp) fastForward(ctx context.Context, rv uint64) error {
	_, epoch := c.writer.Position()
	var changes []watchcache.Change
	listed := uint64(0)
	resource, query := c.writer.cache.Resource(), client.At(rv, "NotOlderThan")
	p, err := c.Shared.Client.Page(ctx, resource, query, func(o *object.Object) error {
		changes = append(changes, watchcache.Change{Object: o})
		listed = max(listed, o.ResourceVersion())
		return nil
	})
	switch {
	case err != nil:
		return err
	case p.RV < rv:
		return client.ListedAt(p.RV, rv)
	case p.Next != "":
		return client.ErrPartial
	}
	err = c.writer.Write(epoch, func() error {
		c.writer.listed.Store(listed)
		return c.writer.cache.Writer().FastForward(compact(changes), p.RV)
	})
	if errors.Is(err, watchcache.ErrDiverged) {
		c.main.Interrupt(err) // the feed relists
	}
	return err
}

// sideWatch opens a second watch at the end of the log. It applies the events that the main stream
// has not delivered yet, up to a bookmark. The cache later drops the main stream's copies.
func (c *CatchUp) sideWatch(ctx context.Context, rv uint64) error {
	from, epoch := c.writer.Position()
	ctx, cancel := context.WithTimeout(ctx, AskTimeout+sideWatchSeconds*time.Second)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		defer cancel() // the cache has reached rv, or ctx has ended
		_, _ = c.writer.cache.WaitFresh(ctx, rv)
	})
	resource, accept := c.writer.cache.Resource(), client.AcceptOf(c.Encoding)
	resp, err := c.Shared.Client.GetCollection(ctx, accept, "side-watch", resource, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {strconv.FormatUint(from, 10)},
		"timeoutSeconds":  {strconv.Itoa(sideWatchSeconds)},
	})
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // read to its end, or no longer needed
		s := client.NewStream(resp.Body, resource)
		r := &streamReader{c.Collection, c.writer, c.main, epoch}
		err = r.readEvents(ctx, s, new(Signs)) // the signs of the feed are of its main stream
	}
	if Reaches(ctx, c.writer.cache, rv, 0) {
		return nil
	}
	if err == nil {
		err = errors.New("it has ended")
	}
	return fmt.Errorf("side watch from %d did not reach %d: %w", from, rv, err)
}
