package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// passage describes how objects enter a selection by a field and leave it again.
type passage struct {
	of          *collection
	selector    string // the opposite selector is also watched
	fields      map[string]any
	enter       string // a patch
	leave       string
	subresource string      // the subresource to patch
	watched     *collection // the same collection under another name; nil if there is none
}

func passages(gadgets *collection) []passage {
	return []passage{
		{pods, "status.phase=Running", podSpec("n1"), `{"status":{"phase":"Running"}}`, `{"status":{"phase":"Failed"}}`, "/status", nil},
		{pods, "status.phase=Running,spec.nodeName=n1", podSpec("n1"), `{"status":{"phase":"Running"}}`, `{"status":{"phase":"Failed"}}`, "/status", nil},
		{pods, "status.podIP=10.0.0.9", podSpec(""), `{"status":{"podIPs":[{"ip":"10.0.0.9"}]}}`, `{"status":{"podIP":null,"podIPs":null}}`, "/status", nil},
		{nodes, "spec.unschedulable=true", nil, `{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":null}}`, "", nil},
		{services, "spec.type=NodePort", spec(`{"ports":[{"port":80}]}`), `{"spec":{"type":"NodePort"}}`, `{"spec":{"type":"ClusterIP"}}`, "", nil},
		{controllers, "status.replicas=2", spec(controller), `{"status":{"replicas":2}}`, `{"status":{"replicas":0}}`, "/status", nil},
		{jobs, "status.successful=1", spec(job), `{"status":{"succeeded":1}}`, `{"status":{"succeeded":2}}`, "/status", nil},
		{coreEvents, "reason=Killing", nil, `{"reason":"Killing"}`, `{"reason":"Killed"}`, "", nil},
		{coreEvents, "source=example", nil, `{"source":null,"reportingComponent":"example"}`, `{"source":{"component":"other"}}`, "", nil},
		{coreEvents, "type=Warning", nil, `{"type":"Warning"}`, `{"type":"Normal"}`, "", newEvents},
		{widgets, "spec.color=red", spec(`{"color":"blue"}`), `{"spec":{"color":"red"}}`, `{"spec":{"color":""}}`, "", nil},
		{gadgets, "spec.on=true", nil, `{"spec":{"on":true}}`, `{"spec":{"on":false}}`, "", nil},
		{gadgets, "spec.size=-5", spec(`{"size":5}`), `{"spec":{"size":-5}}`, `{"spec":null}`, "", nil},
		{gadgets, "spec.deep.er.key=k", nil, `{"spec":{"deep":{"er":{"key":"k"}}}}`, `{"spec":{"deep":null}}`, "", nil},
	}
}

// An object enters a selection, changes in the selection and leaves it. Objects are also deleted,
// both inside and outside of the selection. Watches of the selection and of its opposite must show
// the apiserver's events.
func TestFieldWatches(t *testing.T) {
	g := newGadgets(t, typed)
	home := newNamespaces(t, "passage", 1)[0]
	g.cached(g.all() + "?resourceVersion=0")
	for _, p := range passages(&g.collection) {
		if p.watched == nil {
			p.watched = p.of
		}
		t.Run(p.watched.name+" by "+p.selector, func(t *testing.T) { p.check(t, home) })
	}
}

func (p passage) check(t *testing.T, home string) {
	name := cluster.UniqueName("passage")
	catchUp(t, p.watched, 1) // a cache that a read has just started has no earlier history
	before := p.object(home, name+"-before").createT(t)
	catchUp(t, p.watched, before)
	var open []asked
	for _, selector := range []string{p.selector, strings.Replace(p.selector, "=", "!=", 1)} {
		for _, f := range []struct {
			query string
			from  source
		}{
			{fmt.Sprintf("resourceVersion=%d", before), cache},
			{"resourceVersion=0&allowWatchBookmarks=true", cache},
			{"allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", ifCached},
		} {
			if withoutStreaming(t, "most recent state", f.query) {
				continue
			}
			// Before the first write, the object is in the opposite selection.
			begins := f.from == ifCached || strings.Contains(selector, "!=") && strings.HasPrefix(f.query, "resourceVersion=0")
			for _, path := range []string{p.watched.in(home), p.watched.all()} {
				target := path + "?watch=true&" + f.query + "&fieldSelector=" + url.QueryEscape(selector)
				open = append(open, asked{target, get(target), p.watched.source(f.from), begins, nil})
			}
		}
	}
	pairs := openPairs(t, open)
	last := p.object(home, name+"-last")
	if err := p.run(t.Context(), p.object(home, name), last); err != nil {
		t.Fatal(err)
	}
	ofLast := func(e Event) bool { return bytes.Contains(e.Line, []byte(`"name":"`+last.name+`"`)) }
	compareEach(t, pairs, ofLast)
}

func (p passage) object(home, name string) object {
	o := object{of: p.of, namespace: home, name: name, fields: p.fields}
	if p.of == coreEvents {
		o.fields = coreEvents.about(home, name)
	}
	return o
}

// run moves one object through the whole selection, and the object last only into it. Watches of
// both selections see last at the end.
func (p passage) run(ctx context.Context, o, last object) error {
	half := o
	half.name += "-half"
	patch := func(o object, path, body string) func() error {
		return func() error { return created(write(ctx, http.MethodPatch, o.path()+path, body)) }
	}
	for _, step := range []func() error{
		func() error { return created(o.create(ctx)) },
		patch(o, "", `{"metadata":{"labels":{"still":"outside"}}}`),
		patch(o, p.subresource, p.enter),
		patch(o, "", `{"metadata":{"labels":{"still":"inside"}}}`),
		patch(o, p.subresource, p.leave),
		patch(o, "", `{"metadata":{"labels":{"still":"gone"}}}`),
		func() error { return o.remove(ctx) },
		func() error { return created(half.create(ctx)) },
		patch(half, p.subresource, p.enter),
		func() error { return half.remove(ctx) },
		func() error { return created(last.create(ctx)) },
		patch(last, p.subresource, p.enter),
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
