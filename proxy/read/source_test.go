package read

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// fillingFeeds has a feed whose cache is never filled.
type fillingFeeds struct{ *stillFeeds }

func (fillingFeeds) Open(ctx context.Context, _ schema.GroupVersionResource, _ object.Want, _ object.Encoding, _ uint64) (Feed, error) {
	<-ctx.Done()
	return nil, watchcache.ErrNotReady
}

// The wait for a cache that is being filled depends on what upstream pays for the read.
func TestPatience(t *testing.T) {
	for target, want := range map[string]time.Duration{
		"/api/v1/pods":                                  time.Second,
		"/api/v1/pods?watch=true":                       time.Second,
		"/api/v1/pods?limit=500&resourceVersion=0":      time.Second, // the limit means nothing
		"/api/v1/pods?limit=500":                        time.Second / 10,
		"/api/v1/namespaces/a/pods?limit=500":           time.Second / 10,
		"/api/v1/pods?limit=500&resourceVersion=7":      time.Second / 10,
		"/api/v1/namespaces/a/pods/b?resourceVersion=0": time.Second / 10,
	} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs, rd := newStill(t, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod", "")
				rd.Feeds = fillingFeeds{fs}
				began := time.Now()
				got := fs.ask(t, rd, target)
				if took := time.Since(began); took != want || got.Reason != Stale {
					t.Errorf("after %v: %v", took, got.Reason)
				}
			})
		})
	}
}
