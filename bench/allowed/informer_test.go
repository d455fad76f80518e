package allowed

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// inform starts what client-go's informers consist of, for ConfigMaps. It ends with ctx.
func (p *proxy) inform(ctx context.Context, running *sync.WaitGroup, c caller, protobuf bool) (cache.Store, error) {
	config := &rest.Config{Host: p.URL + "/views/mine", BearerToken: c.token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.process.CA}}
	if protobuf {
		config.ContentConfig = rest.ContentConfig{AcceptContentTypes: inProtobuf + "," + inJSON, ContentType: inProtobuf}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	store, silent := cache.NewStore(cache.MetaNamespaceKeyFunc), klog.Logger{}
	from := cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "", fields.Everything()), client)
	const pause = 100 * time.Millisecond // client-go's own pauses grow to half a minute
	r := cache.NewReflectorWithOptions(from, &corev1.ConfigMap{}, store, cache.ReflectorOptions{
		Name: c.name, Logger: &silent, Backoff: &wait.Backoff{Duration: pause, Factor: 1, Steps: 1},
	})
	running.Go(func() { r.Run(ctx.Done()) })
	return store, nil
}

// While rights and objects change at random, informers get what their users may read.
func TestInformers(t *testing.T) {
	t.Parallel()
	const users, count, changes = 3, 8, 60
	w := sharedWorld(t)
	s := w.team(t, forgetful(t), count, 1)
	random := rand.New(rand.NewPCG(cluster.Seed(), 2))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	may, stores := map[string]map[string]bool{}, map[string][]cache.Store{}
	for i := range users {
		who := user(fmt.Sprintf("informed%d", i))
		may[who.name] = map[string]bool{}
		for _, protobuf := range []bool{true, false} {
			store, err := s.inform(ctx, &running, who, protobuf)
			s.must(err)
			stores[who.name] = append(stores[who.name], store)
		}
	}
	objects := map[string][]string{}
	for range changes {
		name, in := fmt.Sprintf("informed%d", random.IntN(users)), pick(random, s.names...)
		change := func() error { return s.bind(ctx, in, "configs", cluster.Users(name)[0]) }
		if may[name][in] {
			change = func() error { return s.unbind(ctx, in, "configs", name) }
		}
		s.must(change())
		may[name][in] = !may[name][in]
		in = pick(random, s.names...)
		if known := objects[in]; len(known) > 0 && random.IntN(2) == 0 {
			s.must(w.remove(ctx, configmaps, in, strings.TrimPrefix(known[0], in+"/")))
			objects[in] = known[1:]
			continue
		}
		objects[in] = append(objects[in], s.write(in))
	}
	s.must(w.settled(ctx))
	compare := func() {
		t.Helper()
		all, _, err := listed(ctx, w.api, w.adminCaller(), cluster.Get(configmaps.path("")))
		s.must(err)
		for name, of := range stores {
			want := map[string]string{}
			for _, i := range all.items {
				if namespace, _, _ := strings.Cut(i.key, "/"); may[name][namespace] {
					want[i.key] = i.rv
				}
			}
			for _, store := range of {
				cluster.Eventually(t, name+" has what it may read", func() bool {
					has := map[string]string{}
					for _, o := range store.List() {
						c := o.(*corev1.ConfigMap)
						has[c.Namespace+"/"+c.Name] = c.ResourceVersion
					}
					return maps.Equal(has, want)
				})
			}
		}
	}
	compare()
	for _, n := range s.names { // the watches that have begun meanwhile follow, too
		s.write(n)
	}
	compare()
}
