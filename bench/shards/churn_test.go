package shards

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// follower is what client-go's informers consist of, for one share of the objects. It remembers all
// objects that it was shown.
type follower struct {
	cache.Store
	share shard
	mu    struct {
		sync.Mutex
		shown    map[types.UID]bool
		replaced int // number of times that it got a whole state
	}
}

func (f *follower) note(objects ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.shown == nil {
		f.mu.shown = map[types.UID]bool{}
	}
	for _, o := range objects {
		f.mu.shown[o.(metav1.Object).GetUID()] = true
	}
}

// Add implements cache.Store. So do the others.
func (f *follower) Add(o any) error { f.note(o); return f.Store.Add(o) }

func (f *follower) Update(o any) error { f.note(o); return f.Store.Update(o) }

func (f *follower) Delete(o any) error { f.note(o); return f.Store.Delete(o) }

func (f *follower) Replace(all []any, rv string) error {
	f.note(all...)
	f.mu.Lock()
	f.mu.replaced++
	f.mu.Unlock()
	return f.Store.Replace(all, rv)
}

// has returns the resourceVersions of the objects by uid.
func (f *follower) has() map[types.UID]string {
	all := map[types.UID]string{}
	for _, o := range f.List() {
		c := o.(*corev1.ConfigMap)
		all[c.UID] = c.ResourceVersion
	}
	return all
}

// lister hides from client-go that the state can be watched.
type lister struct{ cache.ListerWatcher }

// IsWatchListSemanticsUnSupported tells client-go to list.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// group follows all shares of a namespace, through one address.
type group struct {
	name      string
	followers []*follower
}

const shares = 8

// followT starts a group, which ends with ctx.
func followT(ctx context.Context, t *testing.T, running *sync.WaitGroup, url string, ca []byte, namespace string, streaming bool) *group {
	t.Helper()
	config := &rest.Config{Host: url, QPS: -1, UserAgent: inView, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	if streaming {
		config.ContentConfig = rest.ContentConfig{AcceptContentTypes: inProtobuf, ContentType: "application/vnd.kubernetes.protobuf"}
	}
	client := kubernetes.NewForConfigOrDie(config)
	g := &group{name: fmt.Sprintf("%s (streaming %t)", url, streaming)}
	for i := range shares {
		f := &follower{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), share: share(i, shares)}
		cut := func(o *metav1.ListOptions) { o.ShardSelector = f.share.text }
		from := cache.ToListWatcherWithWatchListSemantics(cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", namespace, cut), client)
		if !streaming {
			from = lister{from}
		}
		silent := klog.Logger{}
		r := cache.NewReflectorWithOptions(from, &corev1.ConfigMap{}, f, cache.ReflectorOptions{Name: g.name, Logger: &silent})
		running.Go(func() { r.Run(ctx.Done()) })
		g.followers = append(g.followers, f)
	}
	return g
}

// Shares that are disjoint stay so while objects change, and are the whole collection together.
func TestChurn(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	random := rand.New(rand.NewPCG(cluster.Seed(), 2))
	s := w.newScript(t, configmaps, random)
	s.namespaces = s.namespaces[:1]
	home := s.namespaces[0]
	for range 30 {
		s.change()
	}
	maps.DeleteFunc(s.ever, func(uid types.UID, _ bool) bool { return !slices.Contains(s.uids(), string(uid)) })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var groups []*group
	for _, streaming := range []bool{false, true} {
		groups = append(groups,
			followT(ctx, t, &running, w.on.process.URL, w.on.process.CA, home, streaming),
			followT(ctx, t, &running, w.off.process.URL+"/views/shards", w.off.process.CA, home, streaming))
	}
	for _, g := range groups {
		for _, f := range g.followers {
			cluster.Eventually(t, g.name+" has begun", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.mu.replaced > 0
			})
		}
	}
	const changes, names = 400, 50
	s.names = names
	for range changes {
		s.change()
	}
	want := map[types.UID]string{}
	for _, o := range gjson.GetBytes(mustT(t, w.on.api, as(direct, cluster.Get(configmaps.path(home)))).Body, "items").Array() {
		want[types.UID(o.Get("metadata.uid").Str)] = o.Get("metadata.resourceVersion").Str
	}
	for _, g := range groups {
		cluster.Eventually(t, g.name+" has everything", func() bool { return len(g.differs(want)) == 0 })
		lists := 0
		for _, f := range g.followers {
			lists += f.mu.replaced
		}
		t.Logf("%s has listed %d times", g.name, lists)
		for uid := range s.ever {
			var in []string
			for i, f := range g.followers {
				if f.mu.shown[uid] {
					in = append(in, fmt.Sprint(i))
				}
			}
			if len(in) != 1 {
				t.Errorf("%s: the object %s was shown in the shares [%s] instead of one", g.name, uid, strings.Join(in, " "))
			}
		}
	}
	t.Logf("%d objects were shown, of which %d are left", len(s.ever), len(want))
}

// differs returns the objects that are not in exactly the share that they belong to.
func (g *group) differs(want map[types.UID]string) (all []types.UID) {
	for _, f := range g.followers {
		has := f.has()
		for uid, rv := range want {
			if due := f.share.has(string(uid), ""); due && has[uid] != rv || !due && has[uid] != "" {
				all = append(all, uid)
			}
		}
		for uid := range has {
			if want[uid] == "" {
				all = append(all, uid)
			}
		}
	}
	return all
}
