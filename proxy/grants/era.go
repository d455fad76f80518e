package grants

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookLeast is the shortest interval between two looks.
	lookLeast = 500 * time.Millisecond
	// goneMost is the number of namespaces without objects that each era may know.
	goneMost = 1000
	// retryPause is the time after which a question without an answer is asked again.
	retryPause = time.Second
)

// era is the time in which no decision has changed. It ends with its last watch at the latest.
type era struct {
	of       *Eras
	key      Key
	reviewer Reviewer
	cancel   context.CancelFunc
	running  sync.WaitGroup
	asked    chan struct{} // has a value while there are questions
	opening  chan struct{} // has a value while a watch begins
	over     atomic.Bool

	mu struct {
		sync.RWMutex
		known map[string]Answer
		shown []string // the last result of allowed, which watches share
	}

	// Eras.mu guards these fields. It is locked after mu.
	counted   int
	watches   map[*Watch]struct{}
	questions map[string]struct{}
}

func begin(s *Eras, k Key, r Reviewer) *era {
	ctx, cancel := context.WithCancel(context.Background())
	e := &era{
		of:        s,
		key:       k,
		reviewer:  r,
		cancel:    cancel,
		asked:     make(chan struct{}, 1),
		opening:   make(chan struct{}, 1),
		watches:   map[*Watch]struct{}{},
		questions: map[string]struct{}{},
	}
	e.mu.known = map[string]Answer{}
	e.running.Go(func() { e.answer(ctx) })
	e.running.Go(func() { e.look(ctx) })
	return e
}

func (e *era) find(namespace string) (a Answer, known bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	a, known = e.mu.known[namespace]
	return a, known
}

// Decide implements object.Decisions. A decision that allows and has expired is unknown.
func (e *era) Decide(namespace string) (selected, known bool) {
	a, known := e.find(namespace)
	return a.Allowed, known && (!a.Allowed || a.counts())
}

// open decides on the namespaces of a state. Watches that begin at the same time take turns,
// because the first one asks for all of them.
func (e *era) open(ctx context.Context, names []string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case e.opening <- struct{}{}:
	}
	defer func() { <-e.opening }()
	return e.decide(ctx, names)
}

// decide asks about the namespaces whose decisions are unknown or do not count any more.
func (e *era) decide(ctx context.Context, names []string) error {
	var ask []string
	unknown := 0
	for _, name := range names {
		a, known := e.find(name)
		if !known {
			unknown++
		}
		if !known || !a.counts() {
			ask = append(ask, name)
		}
	}
	if !e.of.fits(e, unknown) {
		return ErrTooMany
	}
	return each(ctx, ask, func(ctx context.Context, i int) error { return e.review(ctx, ask[i]) })
}

// review asks about a namespace. If the decision has changed, the era is over.
func (e *era) review(ctx context.Context, name string) error {
	if e.over.Load() {
		return nil
	}
	a, err := e.reviewer.Review(ctx, name)
	if err != nil {
		return err
	}
	changed, err := e.learn(name, a)
	if changed {
		e.end()
	}
	return err
}

func (e *era) learn(name string, a Answer) (changed bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, known := e.mu.known[name]
	switch {
	case known && was.Allowed != a.Allowed:
		e.over.Store(true) // before anything else is shown
		return true, nil
	case !known && !e.of.count(e):
		return false, ErrTooMany
	}
	e.mu.known[name] = a
	return false, nil
}

// allowed returns those of the namespaces that are allowed, sorted, and the time until which all of
// them are.
func (e *era) allowed(names []string) (in []string, until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		a := e.mu.known[name]
		if !a.Allowed {
			continue
		}
		if in = append(in, name); len(in) == 1 || a.Until.Before(until) {
			until = a.Until
		}
	}
	slices.Sort(in)
	if slices.Equal(in, e.mu.shown) {
		in = e.mu.shown
	}
	e.mu.shown = in
	return in, until
}

func (e *era) answer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.asked:
		}
		err := e.decide(ctx, e.takeQuestions())
		switch {
		case errors.Is(err, ErrTooMany):
			e.end()
		case err != nil: // the watches ask again
			select {
			case <-ctx.Done():
			case <-time.After(retryPause):
			}
		}
		e.wakeWaiting()
	}
}

func (e *era) takeQuestions() []string {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	names := slices.Collect(maps.Keys(e.questions))
	clear(e.questions)
	return names
}

func (e *era) wakeWaiting() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	for w := range e.watches {
		if w.waits {
			w.waits = false
			w.wakeLocked()
		}
	}
}

// look asks about all known namespaces again and again. So a watch ends when its user may read
// further ones, even if nothing happens there. No watch needs it to show only what it may (E3).
func (e *era) look(ctx context.Context) {
	again := time.NewTicker(max(e.reviewer.DenyTTL(), lookLeast))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		names := e.names()
		if e.isOld(names) {
			e.end()
			return
		}
		for _, name := range names {
			if e.of.looks.Wait(ctx) != nil {
				return
			}
			_ = e.review(ctx, name) // without an answer, nothing has changed
		}
	}
}

func (e *era) names() []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.Collect(maps.Keys(e.mu.known))
}

// isOld reports whether most of the known namespaces have lost their objects. The watches of such
// an era begin anew, so that no era grows with each namespace that comes and goes.
func (e *era) isOld(known []string) bool {
	present := 0
	for range e.reviewer.Namespaces() {
		present++
	}
	return len(known) > 2*present+goneMost
}

func (e *era) end() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	e.endLocked()
}

// endLocked ends the era. Its watches find out before they show anything else.
func (e *era) endLocked() {
	e.over.Store(true)
	e.cancel()
	e.of.countLocked(e, -e.counted)
	if e.of.mu.open[e.key] == e {
		delete(e.of.mu.open, e.key)
	}
	for w := range e.watches {
		w.wakeLocked()
	}
}
