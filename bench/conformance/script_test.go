package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// newNamespaces creates namespaces. It returns their names in sorted order.
func newNamespaces(t *testing.T, name string, n int) []string {
	t.Helper()
	names := make([]string, n)
	base := cluster.UniqueName(name)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%c", base, 'a'+i)
		(object{of: namespaces, name: names[i]}).createT(t)
	}
	return names
}

// script is a sequence of writes to one collection. It moves objects into and out of every
// selection that rows watch.
type script struct {
	of        *collection
	home      string // where most of the writes happen
	elsewhere string
	first     string // the name of the main object
}

func newScript(t *testing.T, c *collection) *script {
	t.Helper()
	s := &script{of: c, first: cluster.UniqueName("first")}
	if c.namespaced {
		names := newNamespaces(t, "script", 2)
		s.home, s.elsewhere = names[0], names[1]
	}
	return s
}

// fence is the key of an annotation. A script ends with writes of objects that have this annotation
// with the script's name. Every selection contains one of these objects.
const fence = "fence"

// fenced returns a function that recognizes the fence of one script.
func fenced(by string) func(Event) bool {
	mark := []byte(`"annotations":{"` + fence + `":"` + by + `"`)
	// The entry is in protobuf.
	entry := []byte("\n" + string(rune(len(fence))) + fence + "\x12" + string(rune(len(by))) + by)
	return func(e Event) bool { return bytes.Contains(e.Line, mark) || bytes.Contains(e.Line, entry) }
}

func (s *script) object(namespace, name, app, node string) object {
	o := object{of: s.of, namespace: namespace, name: name, meta: map[string]any{}}
	if app != "" {
		o.meta["labels"] = map[string]string{"app": app}
	}
	switch s.of {
	case pods:
		o.fields = podSpec(node)
	case configMaps:
		o.fields = data("text", awkward)
	case widgets, planets:
		o.fields = numbers
	case coreEvents, newEvents:
		o.fields = s.of.about(namespace, name)
	}
	return o
}

func (s *script) run(ctx context.Context) error {
	first := s.object(s.home, s.first, "web", "")
	second := s.object(s.home, s.first+"-2", "db", "n1")
	again := s.object(s.home, second.name, "web", "n2")
	steps := []func() error{
		func() error { return created(first.create(ctx)) },
		func() error { return created(second.create(ctx)) },
		func() error { return created(first.patch(ctx, `{"metadata":{"labels":{"app":"db"}}}`)) },
		func() error { return created(first.patch(ctx, `{"metadata":{"annotations":{"note":"<still> db"}}}`)) },
		func() error { return created(first.patch(ctx, `{"metadata":{"labels":{"app":"web"}}}`)) },
		func() error { return created(first.patch(ctx, `{"metadata":{"labels":null}}`)) },
		func() error { return created(first.patch(ctx, `{"metadata":{"labels":{"app":"web","more":"x"}}}`)) },
		func() error { return second.remove(ctx) },
		func() error { return created(again.create(ctx)) },
	}
	if s.of == pods {
		steps = append(steps,
			func() error { return first.bind(ctx, "n1") },
			func() error {
				return created(write(ctx, http.MethodPatch, first.path()+"/status", `{"status":{"phase":"Running","podIP":"10.0.0.9"}}`))
			},
			// The deletion has a grace period.
			func() error { return created(write(ctx, http.MethodDelete, first.path(), "")) },
		)
	}
	steps = append(steps, func() error { return first.remove(ctx) })
	for _, o := range s.last() {
		steps = append(steps, func() error { return created(o.create(ctx)) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// last returns the objects that the script's last writes create.
func (s *script) last() []object {
	all := []object{
		s.object(s.home, s.first, "web", "n1"),
		s.object(s.home, s.first+"-last", "", ""),
		s.object(s.elsewhere, s.first+"-elsewhere", "db", "n2"),
	}
	for _, o := range all {
		o.meta["annotations"] = map[string]string{fence: s.first}
	}
	return all
}

// created discards the resourceVersion that a write returns.
func created(_ uint64, err error) error { return err }
