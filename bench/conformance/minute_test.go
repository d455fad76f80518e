package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// minute has a watch of every sample at each server. These watches show only bookmarks, and end
// shortly after the regular bookmark is due. They are opened before the first test, so that no test
// has to wait for them.
var minute struct {
	streams []*stream
	unseen  []uint64 // resourceVersions of writes after the watches were opened
	read    []watched
	reading sync.WaitGroup
}

// minuteLife is longer than the time to the first regular bookmark, by more than two seconds, and
// shorter than the time to the second regular bookmark.
const minuteLife = 66 * time.Second

// startMinute opens the watches. The caller must close them.
func startMinute(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	for _, c := range samples {
		o := object{of: c, namespace: "default", name: "minute"}
		if c.uncached {
			o.fields = c.about(o.namespace, o.name)
		}
		rv, err := o.create(ctx)
		if err != nil {
			return err
		}
		target := fmt.Sprintf("%s?watch=true&labelSelector=app%%3Dnobody&resourceVersion=%d&timeoutSeconds=%d&allowWatchBookmarks=true",
			c.all(), rv, minuteLife/time.Second)
		for _, e := range []*cluster.Endpoint{apiserver, proxied} {
			s, err := openStream(ctx, e, get(target))
			if err != nil {
				return err
			}
			minute.streams = append(minute.streams, s)
		}
		o.name = "minute-unseen"
		if c.uncached {
			o.fields = c.about(o.namespace, o.name)
		}
		if rv, err = o.create(ctx); err != nil {
			return err
		}
		minute.unseen = append(minute.unseen, rv)
	}
	minute.reading.Go(func() { minute.read = toEnd(minute.streams) })
	return nil
}

func closeMinute() {
	for _, s := range minute.streams {
		s.close()
	}
	minute.reading.Wait()
}

// A watch gets a bookmark once a minute and another bookmark shortly before its end, but no further
// bookmarks. The apiserver sometimes sends the last bookmark twice, because it checks once a second
// which bookmarks are due.
func TestBookmarksOnceAMinute(t *testing.T) {
	minute.reading.Wait()
	for i, w := range minute.read {
		c := samples[i/2]
		t.Run(c.name+", "+w.name, func(t *testing.T) {
			due, twice := 2, 0
			if w.name == apiserver.Name || inParts {
				twice = 1
			}
			if c.uncached {
				due, twice = 0, 0 // etcd's watch has no bookmarks
			}
			if n := len(w.events); w.err != nil || n < due || n > due+twice {
				t.Fatalf("%d bookmarks instead of %d, %v", n, due, w.err)
			}
			for _, e := range w.events {
				if e.Type != "BOOKMARK" || e.InitialEnd || e.RV < minute.unseen[i/2] {
					t.Errorf("%s", e.Line)
				}
			}
		})
	}
}
