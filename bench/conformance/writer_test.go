package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
)

// progress counts the writers' writes.
type progress struct {
	mu struct {
		sync.Mutex
		writes  int
		rv      uint64          // highest resourceVersion in a response so far
		waiting []chan struct{} // closed at milestones
	}
}

// milestone is the number of writes between two milestones.
const milestone = 100

func newProgress(writes int) *progress {
	p := &progress{}
	p.mu.waiting = make([]chan struct{}, writes/milestone+1)
	for i := range p.mu.waiting {
		p.mu.waiting[i] = make(chan struct{})
	}
	close(p.mu.waiting[0])
	return p
}

func (p *progress) wrote(rv uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.rv = max(p.mu.rv, rv)
	p.mu.writes++
	if i := p.mu.writes / milestone; p.mu.writes%milestone == 0 && i < len(p.mu.waiting) {
		close(p.mu.waiting[i])
	}
}

// reached returns a channel that is closed at the milestone with this number.
func (p *progress) reached(number int) <-chan struct{} { return p.mu.waiting[number] }

func (p *progress) rv() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.rv
}

// writer makes random writes to the pods and configmaps in its own namespace.
type writer struct {
	namespace string
	rand      *rand.Rand
	progress  *progress
	written   int
	objects   []*subject
}

// subject is an object and its writer's data about it.
type subject struct {
	object
	exists, bound, ending bool
}

var (
	writerApps  = []string{"red", "green", "blue", ""}
	writerNodes = []string{"n1", "n2", ""}
	// No phase is final, because pods that have failed are deleted without a grace period.
	writerPhases = []string{"Pending", "Running", "Unknown"}
)

func newWriter(namespace string, seed1, seed2 uint64, p *progress) *writer {
	w := &writer{namespace: namespace, rand: rand.New(rand.NewPCG(seed1, seed2)), progress: p}
	for i := range 8 {
		for _, c := range []*collection{configMaps, pods} {
			w.objects = append(w.objects, &subject{object: object{of: c, namespace: namespace, name: fmt.Sprintf("o-%d", i)}})
		}
	}
	return w
}

// run makes the given number of writes.
func (w *writer) run(ctx context.Context, writes int) error {
	for range writes {
		s := w.objects[w.rand.IntN(len(w.objects))]
		rv, err := w.step(ctx, s)
		if err != nil {
			return err
		}
		w.progress.wrote(rv)
	}
	return nil
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// step makes one write, which uses one revision.
func (w *writer) step(ctx context.Context, s *subject) (uint64, error) {
	w.written++
	note := fmt.Sprintf(`"annotations":{"note":"<%d> %s"}`, w.written, w.namespace)
	switch n := w.rand.IntN(100); {
	case !s.exists:
		return w.create(ctx, s)
	case s.ending, n < 15:
		s.exists = false
		return 0, s.remove(ctx)
	case n < 25 && s.bound:
		// The deletion has a grace period, so that the object is first marked for deletion.
		s.ending = true
		return write(ctx, http.MethodDelete, s.path(), "")
	case n < 50:
		labels := `"labels":null`
		if app := pick(w.rand, writerApps); app != "" {
			labels = fmt.Sprintf(`"labels":{"app":%q}`, app)
		}
		return s.patch(ctx, `{"metadata":{`+note+`,`+labels+`}}`)
	case n < 65 && s.of == pods && !s.bound:
		s.bound = true
		return 0, s.bind(ctx, pick(w.rand, writerNodes[:2]))
	case n < 75 && s.of == pods:
		return s.patchStatus(ctx, fmt.Sprintf(`{"status":{"message":"write %d","phase":%q}}`, w.written, pick(w.rand, writerPhases)))
	}
	return s.patch(ctx, `{"metadata":{`+note+`}}`)
}

func (w *writer) create(ctx context.Context, s *subject) (uint64, error) {
	node := ""
	if s.of == pods {
		node = pick(w.rand, writerNodes)
	}
	s.exists, s.bound, s.ending = true, node != "", false
	s.meta, s.fields = map[string]any{}, data("written", fmt.Sprint(w.written), "text", awkward)
	if s.of == pods {
		s.fields = podSpec(node)
	}
	if app := pick(w.rand, writerApps); app != "" {
		s.meta["labels"] = map[string]string{"app": app}
	}
	return s.create(ctx)
}

// close makes the last writes. Every selection contains some of them.
func (w *writer) close(ctx context.Context) error {
	var errs []error
	for i, c := range []*collection{configMaps, pods} {
		for _, app := range writerApps {
			for _, node := range writerNodes {
				o := object{of: c, namespace: w.namespace, name: "last-" + app + "-" + node + "-x", fields: data("last", app)}
				if c == pods {
					o.fields = podSpec(node)
				}
				if app != "" {
					o.meta = map[string]any{"labels": map[string]string{"app": app}}
				}
				errs = append(errs, created(o.create(ctx)))
			}
		}
		// Selections by name select this object.
		one := w.objects[i]
		if one.exists {
			errs = append(errs, one.remove(ctx))
		}
		errs = append(errs, created(w.create(ctx, one)))
	}
	return errors.Join(errs...)
}
