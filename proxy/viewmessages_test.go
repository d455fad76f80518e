package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// bothFeeds have a feed in JSON and one in protobuf.
type bothFeeds struct {
	oneFeed
	protobuf read.Feed
}

// Open implements Feeds.
func (f bothFeeds) Open(_ context.Context, _ schema.GroupVersionResource, _ object.Want, e object.Encoding, _ uint64) (read.Feed, error) {
	if e == object.Protobuf {
		return f.protobuf, nil
	}
	return f.feed, nil
}

// The cache answers in protobuf, or in JSON if the Go type lacks a field of the view. Upstream is
// asked for JSON.
func TestMessagesOfViews(t *testing.T) {
	const list, protobuf = "/views/slim/api/v1/namespaces/a/configmaps", "application/vnd.kubernetes.protobuf"
	for _, c := range []struct {
		target, field, want string
		audited             bool
	}{
		{list, "data", protobuf, false},
		{list + "?resourceVersion=0", "data", protobuf, false},
		{list, "later", anyJSON, false},
		{list + "?resourceVersion=0", "later", anyJSON, false},
		{list + "/c-000000?resourceVersion=0", "later", anyJSON, false},
		{list + "?unknown=1", "data", "upstream", false},
		{list + "/c", "data", "upstream", false},
		{list, "data", "upstream", true},
		{"/api/v1/namespaces/a/configmaps?unknown=1", "data", protobuf + "," + anyJSON, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			maps, _ := cachetest.ConfigMaps(t, 3)
			r := cachetest.Resource()
			r.Encoding = object.Protobuf
			messages := watchcache.New(r, watchcache.Limits{})
			messages.Reset(nil, 10)
			o := testOptions()
			o.Views = map[string]*exchange.View{"slim": {Name: "slim", Fields: projection.Keep([]projection.Path{{{Key: c.field}}})}}
			if c.audited {
				o.Audit, _ = auditing(t, "- level: RequestResponse")
			}
			feeds := bothFeeds{oneFeed{feed: &rawFeed{maps}}, &rawFeed{messages}}
			_, l := serveTo(t, feeds, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", r.Header.Get("Accept"))
				_, _ = io.WriteString(w, `{"kind":"upstream"}`)
			}, o)
			resp, body := clientTo(t, l, "http/1.1").get(t, c.target, "Accept", protobuf+","+anyJSON)
			got := resp.Header.Get("Content-Type")
			if strings.Contains(body, "upstream") && got == anyJSON {
				got = "upstream"
			}
			if got != c.want || resp.StatusCode != http.StatusOK {
				t.Errorf("%+v: %d %s %q", c, resp.StatusCode, got, body)
			}
		})
	}
}
