package allowed

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
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
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// follower follows the ConfigMaps that its user may read.
type follower interface {
	// has returns the resourceVersions of the objects that the follower has now.
	has() map[string]string
	fmt.Stringer
}

// informer is what client-go's informers consist of.
type informer struct {
	name  string
	store cache.Store
}

func (i *informer) String() string { return i.name }

func (i *informer) has() map[string]string {
	all := map[string]string{}
	for _, o := range i.store.List() {
		c := o.(*corev1.ConfigMap)
		all[c.Namespace+"/"+c.Name] = c.ResourceVersion
	}
	return all
}

// inform starts an informer, which ends with ctx.
func (p *proxy) inform(ctx context.Context, running *sync.WaitGroup, c caller, protobuf bool) (*informer, error) {
	config := &rest.Config{Host: p.URL + "/views/mine", BearerToken: c.token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.process.CA}}
	if protobuf {
		config.ContentConfig = rest.ContentConfig{AcceptContentTypes: inProtobuf + "," + inJSON, ContentType: inProtobuf}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	i := &informer{fmt.Sprintf("the informer of %s (protobuf %t)", c.name, protobuf), cache.NewStore(cache.MetaNamespaceKeyFunc)}
	from := cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "", fields.Everything()), client)
	silent := klog.Logger{}
	const pause = 100 * time.Millisecond // client-go's own pauses grow to half a minute
	r := cache.NewReflectorWithOptions(from, &corev1.ConfigMap{}, i.store, cache.ReflectorOptions{
		Name: i.name, Logger: &silent, Backoff: &wait.Backoff{Duration: pause, Factor: 1, Steps: 1},
	})
	running.Go(func() { r.Run(ctx.Done()) })
	return i, nil
}

// plain is a watch without a client library. It begins with the state again whenever it ends.
type plain struct {
	*walk
	caller caller
	accept string
	away   time.Duration // after which it cuts its connection; 0 for never

	mu      sync.Mutex
	objects map[string]string
	begun   map[string]string // the state until it is complete
	errors  int               // ERROR events
	ends    int
}

func (p *plain) String() string {
	return fmt.Sprintf("the watch of %s (away %v, %s)", p.caller.name, p.away, p.accept)
}

func (p *plain) has() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.objects)
}

// run follows until ctx ends.
func (p *plain) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.once(ctx); err != nil && ctx.Err() == nil {
			p.complain("%s: %v", p, err)
			return
		}
		const pause = 200 * time.Millisecond
		cluster.Pause(ctx, pause)
	}
}

// once watches until the watch ends, or until the client cuts it.
func (p *plain) once(ctx context.Context) error {
	target := "/views/mine" + configmaps.path("") + fromState
	p.begun = map[string]string{}
	connection, cancel := ctx, func() {}
	if p.away > 0 {
		connection, cancel = context.WithTimeout(ctx, p.away)
	}
	defer cancel()
	resp, err := p.proxy.Watch(connection, p.caller.as(cluster.Request{Target: target, Protocol: cluster.HTTP2}.With("Accept", p.accept)))
	if err == nil {
		err = p.read(resp)
		resp.Body.Close()
	}
	if connection.Err() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends++
	return err
}

func (p *plain) read(resp *http.Response) error {
	for e, err := range conformance.Events(resp) {
		if err != nil {
			return err
		}
		p.look(p.caller, p.String(), cluster.Answer{Header: resp.Header, Body: e.Line})
		p.mu.Lock()
		to := p.objects
		if p.begun != nil {
			to = p.begun
		}
		switch e.Type {
		case "ERROR":
			p.errors++
			p.mu.Unlock()
			if !strings.Contains(string(e.Line), "Expired") {
				return fmt.Errorf("%.300q", e.Line)
			}
			return nil
		case "ADDED", "MODIFIED":
			to[e.Key] = strconv.FormatUint(e.RV, 10)
		case "DELETED":
			delete(to, e.Key)
		}
		if e.InitialEnd {
			p.objects, p.begun = p.begun, nil
		}
		p.mu.Unlock()
	}
	return nil
}

// versions returns the resourceVersions of a list's objects.
func versions(l list) map[string]string {
	all := map[string]string{}
	for _, i := range l.items {
		all[i.key] = i.rv
	}
	return all
}

// start starts the followers of a user. They end with ctx.
func (w *walk) start(ctx context.Context, t *testing.T, c caller) {
	t.Helper()
	for i, accept := range []string{inProtobuf, inJSON} {
		f, err := w.proxy.inform(ctx, &w.running, c, i == 0)
		if err != nil {
			t.Fatal(err)
		}
		w.followers[c.name] = append(w.followers[c.name], f)
		p := &plain{walk: w, caller: c, accept: accept, away: time.Duration(i) * time.Second}
		w.running.Go(func() { p.run(ctx) })
		w.followers[c.name] = append(w.followers[c.name], p)
		w.plains = append(w.plains, p)
	}
}
