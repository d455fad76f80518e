package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// Definitions watches the metadata of all CustomResourceDefinitions. The schemas are not read,
// because they can be large, and the proxy only needs to detect changes. After a change, the feeds
// of the custom resource end, as upstream's own watches do. Cached state from the old definition is
// not served any more.
//
// When a definition changes, upstream ends the watches of its resources cleanly, at any time after
// the change. For some 100 ms it responds with 429. Then it serves the same objects at the same
// resourceVersions with different bytes. So a feed is abandoned as soon as Definitions sees the
// change, and requests wait until upstream serves the new definition. If a watch of a custom
// resource ends early, the feed relists and compares bytes.
type Definitions struct {
	Client *client.Client
	Health *servers.Health
	Log    *zap.Logger
	// Changed is called with the name of a definition and its present version. The version is zero
	// if the definition was deleted.
	Changed func(name string, now Version)
	Begin   sync.Once

	mu struct {
		sync.Mutex
		known     map[string]Version
		following bool // known contains all definitions
	}
}

// Outdated reports whether a definition is known to have changed since its version was read.
func (d *Definitions) Outdated(name string, read Version) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, ok := d.mu.known[name]
	switch {
	case !d.mu.following:
		return false
	case ok && now.UID == read.UID:
		return now.Generation > read.Generation
	}
	return ok // a definition missing from known may be newer than known
}

// Run follows the definitions until ctx ends. If upstream forbids this, Run tries again later.
// Until then, a feed detects a change only by the end of its watch.
func (d *Definitions) Run(ctx context.Context) {
	again := servers.NewRetry(d.Health)
	for {
		end, err := d.Health.Turns.Wait(ctx, first)
		if err != nil {
			return
		}
		began := time.Now()
		err = d.follow(ctx, end)
		end()
		if ctx.Err() != nil {
			return
		}
		d.setFollowing(false)
		expired := apierrors.IsResourceExpired(err)
		if err != nil && !expired {
			d.Log.Warn("following customresourcedefinitions broke", zap.Error(err))
		}
		if (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) && !client.Sleep(ctx, forbiddenPause) {
			return
		}
		if !again.After(ctx, time.Since(began), err, expired) {
			return
		}
	}
}

// first returns a higher urgency than any feed's, because cached custom resources may be wrong
// while the definitions are unknown.
func first() servers.Urgency { return servers.Urgency{Watched: true, Used: math.MaxInt64} }

// forbiddenPause is the pause after upstream forbade the list.
const forbiddenPause = time.Minute

func (d *Definitions) setFollowing(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.following = on
}

// follow lists and watches until the watch ends. It calls opened when the watch is open.
func (d *Definitions) follow(ctx context.Context, opened func()) error {
	var list metav1.PartialObjectMetadataList
	resp, err := d.Client.GetAs(ctx, acceptMetadataList, "definitions", definitionResource, client.ResourcePath(definitionResource, ""), nil)
	if err != nil {
		return err
	}
	err = json.NewDecoder(resp.Body).Decode(&list)
	_ = resp.Body.Close() // read to its end, or broken
	if err != nil {
		return fmt.Errorf("list customresourcedefinitions: %w", err)
	}
	d.replace(list.Items)

	resp, err = d.Client.GetAs(ctx, acceptMetadata, "definitions", definitionResource, client.ResourcePath(definitionResource, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {list.ResourceVersion},
		"timeoutSeconds": {strconv.Itoa(int(definitionsLife.Seconds()))},
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or broken
	opened()
	s := client.NewJSONStream(resp.Body)
	for {
		e, err := s.Next()
		if err != nil {
			return client.Ended(err, false)
		}
		if err := d.apply(e); err != nil {
			return err
		}
	}
}

const (
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// definitionsLife is the timeout of a watch. A silent watch is not trusted longer.
	definitionsLife = 5 * time.Minute
)

func (d *Definitions) apply(e client.Event) error {
	switch e.Kind {
	case "BOOKMARK":
		return nil
	case "ERROR":
		return client.EventError(e, object.JSON)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(e.Object, &o); err != nil || o.Name == "" {
		return errors.Join(errors.New("watch event without metadata"), err)
	}
	now := Version{o.UID, o.Generation}
	if e.Kind == "DELETED" {
		now = Version{}
	}
	d.set(o.Name, now)
	return nil
}

// set records a version and calls Changed if it is new.
func (d *Definitions) set(name string, now Version) {
	d.mu.Lock()
	was := d.mu.known[name]
	if now == (Version{}) {
		delete(d.mu.known, name)
	} else {
		d.mu.known[name] = now
	}
	d.mu.Unlock()
	if was != now {
		d.Changed(name, now)
	}
}

// replace records all versions at once.
func (d *Definitions) replace(items []metav1.PartialObjectMetadata) {
	d.mu.Lock()
	gone := maps.Clone(d.mu.known)
	if d.mu.known == nil {
		d.mu.known = map[string]Version{}
	}
	d.mu.Unlock()
	for i := range items {
		delete(gone, items[i].Name)
		d.set(items[i].Name, Version{items[i].UID, items[i].Generation})
	}
	for name := range gone {
		d.set(name, Version{})
	}
	d.setFollowing(true)
}
