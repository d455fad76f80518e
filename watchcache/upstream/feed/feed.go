package feed

import (
	"context"
	"errors"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

var (
	// ErrWentBack means that upstream's revision is below the cache's revision, because etcd was
	// restored. All cached state must be dropped.
	ErrWentBack = errors.New("upstream's resourceVersion went back")
	// errSilent means that upstream has new revisions, but the stream has delivered nothing.
	errSilent = errors.New("watch stream fell silent")
	// errNoState means that a stream fell silent before its state was complete.
	errNoState = errors.New("watch stream does not complete the state")
	// errCutShort means that upstream ended a watch of a custom resource early, as after a change
	// of its definition.
	errCutShort = errors.New("watch was cut short")
)

// Feed keeps the cache of one resource up to date with upstream. Run is its loop (loop.go). Others
// use its parts at the same time; each part has its own state, and none of them knows the feed.
type Feed struct {
	*Collection
	Usage     *Usage
	Signs     *Signs // of upstream's life
	Progress  *Progress
	Writer    *Writer
	Main      *MainStream
	CatchUp   *CatchUp
	SelfCheck *SelfCheck
	tasks     *tasks // other than Run
	loop      loop
}

// New returns a feed for a client that sent its request at asked. Run starts the feed.
func New(ctx context.Context, u *Shared, key Key, asked time.Time, limits watchcache.Limits) *Feed {
	c, tasks, main := newCollection(u, key), newTasks(ctx), &MainStream{}
	signs, writer := &Signs{}, &Writer{log: c.Log}
	f := &Feed{
		Collection: c, Usage: &Usage{asked: asked}, Signs: signs, Writer: writer, Main: main,
		Progress:  newProgress(c, signs, writer, tasks),
		CatchUp:   &CatchUp{c, writer, main},
		SelfCheck: &SelfCheck{c, writer},
		tasks:     tasks,
	}
	f.loop = loop{limits: limits, beginning: &beginning{
		Collection: c, writer: writer, main: main, progress: f.Progress, catchUp: f.CatchUp,
	}}
	f.Usage.Note(0)
	return f
}

// Cache returns the feed's cache.
func (f *Feed) Cache() *watchcache.Cache { return f.Writer.cache }

// Go runs a task. Its ctx ends with the feed, which waits for it. An ended feed returns false.
func (f *Feed) Go(task func(ctx context.Context)) bool { return f.tasks.Go(task) }

// Stop ends the feed and its cache, and waits until the feed has ended.
func (f *Feed) Stop() {
	f.tasks.Stop()
	<-f.Progress.done
}

// Abandon ends the cache immediately. The run loop ends soon after.
func (f *Feed) Abandon() {
	f.tasks.Stop() // first, because the loop would read the state of an ended cache again
	f.Writer.end()
}

// NoteAnswer records the result of a request that was sent at began. If upstream did not respond, a
// task sends probes until any response comes. While upstream is down, the task takes turns with all
// feeds.
func (f *Feed) NoteAnswer(ctx context.Context, began time.Time, err error) {
	switch {
	case err == nil:
		f.Signs.Answered()
	case client.NoAnswer(err) && ctx.Err() == nil && f.Signs.Unanswered(began):
		f.Shared.Health.Doubt()
		f.Go(f.awaitAnswer)
	}
}

func (f *Feed) awaitAnswer(ctx context.Context) {
	for again := client.NewRetry(f.Shared.Health); ; {
		end, err := f.Shared.Health.Turn(ctx)
		if err != nil {
			return
		}
		if f.Signs.Waits() { // there may have been a sign of life since
			probing, cancel := context.WithTimeout(ctx, AskTimeout)
			_, err = Probe(probing, f.Shared.Client, f.Writer.cache)
			cancel()
		}
		end()
		if !client.NoAnswer(err) {
			f.Signs.Answered()
			return
		}
		if !again.After(ctx, 0, err) {
			return
		}
	}
}
