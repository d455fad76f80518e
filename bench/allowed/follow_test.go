package allowed

import (
	"context"
	"errors"
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

// lister hides from client-go that the state can be watched.
type lister struct{ cache.ListerWatcher }

// IsWatchListSemanticsUnSupported tells client-go to list.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// inform starts an informer, which ends with ctx.
func (p *proxy) inform(ctx context.Context, running *sync.WaitGroup, c caller, streaming, protobuf bool) (*informer, error) {
	config := &rest.Config{Host: p.URL + "/views/mine", BearerToken: c.token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.process.CA}}
	if protobuf {
		config.ContentConfig = rest.ContentConfig{AcceptContentTypes: inProtobuf + "," + inJSON, ContentType: inProtobuf}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	i := &informer{fmt.Sprintf("the informer of %s (streaming %t, protobuf %t)", c.name, streaming, protobuf), cache.NewStore(cache.MetaNamespaceKeyFunc)}
	from := cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "", fields.Everything()), client)
	if !streaming {
		from = lister{from}
	}
	silent := klog.Logger{}
	const pause = 100 * time.Millisecond // client-go's own pauses grow to half a minute
	r := cache.NewReflectorWithOptions(from, &corev1.ConfigMap{}, i.store, cache.ReflectorOptions{
		Name: i.name, Logger: &silent, Backoff: &wait.Backoff{Duration: pause, Factor: 1, Steps: 1},
	})
	running.Go(func() { r.Run(ctx.Done()) })
	return i, nil
}

// plain is a watch without a client library. It follows as clients do: it lists, watches from
// there, and lists again after an error.
type plain struct {
	*walk
	caller caller
	state  bool // the watch begins with the state, instead of a list
	accept string
	away   time.Duration // between two connections

	mu      sync.Mutex
	objects map[string]string
	begun   map[string]string // the state until it is complete
	rv      uint64
	errors  int // ERROR events
	ends    int
}

func (p *plain) String() string {
	return fmt.Sprintf("the watch of %s (state %t, %s)", p.caller.name, p.state, p.accept)
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

// once lists and watches until the watch ends, or until an ERROR says that the client must list.
func (p *plain) once(ctx context.Context) error {
	target := "/views/mine" + configmaps.path("")
	if p.state {
		target += "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
		p.begun = map[string]string{}
	} else {
		a, err := get(ctx, p.proxy.Endpoint, p.caller, cluster.Get(target).With("Accept", p.accept))
		if err != nil {
			return err
		}
		p.look(p.caller, p.String(), a)
		if a.Status != http.StatusOK {
			return fmt.Errorf("list: %d %.300s", a.Status, a.Body)
		}
		l, err := decode(a)
		if err != nil {
			return err
		}
		p.begun = nil
		p.mu.Lock()
		p.objects = versions(l)
		p.mu.Unlock()
		if p.rv, err = strconv.ParseUint(l.ResourceVersion, 10, 64); err != nil {
			return err
		}
		target += "?watch=true&allowWatchBookmarks=true&resourceVersion=" + l.ResourceVersion
	}
	return p.watch(ctx, target)
}

// errAgain says that the client must list again.
var errAgain = errors.New("list again")

// watch watches. If the connection ends without an ERROR, it watches again from its last
// resourceVersion.
func (p *plain) watch(ctx context.Context, target string) error {
	for ctx.Err() == nil {
		connection, cancel := ctx, func() {}
		if !p.state { // such a client often resumes
			connection, cancel = context.WithTimeout(ctx, p.away*2)
		}
		resp, err := p.proxy.Watch(connection, p.caller.as(cluster.Request{Target: target, Protocol: cluster.HTTP2}.With("Accept", p.accept)))
		if err == nil {
			err = p.read(resp)
			resp.Body.Close()
		}
		cut := connection.Err() != nil
		cancel()
		switch {
		case errors.Is(err, errAgain):
			return nil
		case err != nil && cut && ctx.Err() == nil: // the client has cut it
		case err != nil:
			return err
		}
		p.ends++
		if p.begun != nil { // the state is not complete
			return nil
		}
		target = "/views/mine" + configmaps.path("") + "?watch=true&allowWatchBookmarks=true&resourceVersion=" + strconv.FormatUint(p.rv, 10)
		cluster.Pause(ctx, p.away)
	}
	return nil
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
			return errAgain
		case "ADDED", "MODIFIED":
			to[e.Key] = strconv.FormatUint(e.RV, 10)
		case "DELETED":
			delete(to, e.Key)
		}
		if p.rv = e.RV; e.InitialEnd {
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
	for i, streaming := range []bool{true, false} {
		f, err := w.proxy.inform(ctx, &w.running, c, streaming, i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		w.followers[c.name] = append(w.followers[c.name], f)
		p := &plain{walk: w, caller: c, state: streaming, accept: inJSON, away: 300 * time.Millisecond}
		if streaming {
			p.accept = inProtobuf
		}
		w.running.Go(func() { p.run(ctx) })
		w.followers[c.name] = append(w.followers[c.name], p)
		w.plains = append(w.plains, p)
	}
}
