package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader passes events through a batch and records what is published and asked.
type reader struct {
	*Batch
	t         *testing.T
	mu        sync.Mutex
	published []string // one entry for each call of Apply
	asked     []string
	size      int // the number of deletions at the revision
	whole     func(context.Context, uint64, int) bool
	fails     error // of Apply
	failed    error
}

// Apply implements Publisher.
func (r *reader) Apply(changes []watchcache.Change, received time.Time) error {
	var all []string
	for _, c := range changes {
		all = append(all, fmt.Sprintf("%s@%d", c.Object.Name()[len("c-00000"):], c.Object.ResourceVersion()))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, strings.Join(all, " ")+received.Format(" 05.000"))
	return r.fails
}

// Whole implements Publisher.
func (r *reader) Whole(ctx context.Context, rv uint64, deletions int) bool {
	if r.whole != nil {
		return r.whole(ctx, rv, deletions)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, fmt.Sprintf("%d of %d", deletions, rv))
	return deletions == r.size
}

// Interrupt implements Publisher.
func (r *reader) Interrupt(reason error) { r.failed = reason }

func read(t *testing.T, holds bool) *reader {
	t.Helper()
	r := &reader{t: t}
	r.Batch = NewBatch(t.Context(), r, holds)
	t.Cleanup(r.Close)
	return r
}

func (r *reader) set(i, rv int) { r.Add(watchcache.Change{Object: cachetest.ConfigMap(r.t, i, rv)}) }

func (r *reader) del(i, rv int) {
	r.Add(watchcache.Change{Object: cachetest.ConfigMap(r.t, i, rv), Deleted: true})
}

func (r *reader) publish() {
	r.t.Helper()
	if err := r.Publish(); err != nil {
		r.t.Fatal(err)
	}
}

// want compares what was published and asked since the last call.
func (r *reader) want(published, asked string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.published, ", "); got != published {
		r.t.Errorf("published [%s], want [%s]", got, published)
	}
	if got := strings.Join(r.asked, ", "); got != asked {
		r.t.Errorf("asked [%s], want [%s]", got, asked)
	}
	r.published, r.asked = nil, nil
}

// Without leases, each batch is published as it is, and nobody asks.
func TestBatchesArePublishedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, false)
		r.publish()
		r.set(1, 11)
		time.Sleep(time.Millisecond)
		r.del(2, 12)
		r.publish()
		r.del(3, 13)
		r.publish()
		r.want("1@11 2@12 00.000, 3@13 00.001", "")
		time.Sleep(time.Hour)
		r.want("", "")
	})
}

// A later event or a bookmark shows that a revision is complete. An event that is no deletion is
// complete by itself.
func TestLaterEventsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, true)
		r.set(1, 11)
		r.del(2, 12)
		r.publish()
		r.want("1@11 00.000", "")
		time.Sleep(100 * time.Millisecond)
		r.del(3, 12)
		r.publish()
		r.want("", "")
		time.Sleep(100 * time.Millisecond)
		r.del(4, 13)
		r.publish()
		r.want("2@12 3@12 00.000", "")
		r.Reached(12)
		r.publish()
		r.want("", "")
		r.Reached(13)
		r.publish()
		r.want("4@13 00.200", "")
		r.del(5, 14)
		r.set(6, 15)
		r.publish()
		r.want("5@14 6@15 00.200", "")
		r.del(1, 11) // a repeat completes nothing
		r.publish()
		r.want("", "")
		r.del(7, 16)
		r.publish()
		r.want("1@11 00.200", "")
	})
}

// On a quiet stream, upstream is asked. Until it has no more deletions at the revision, all are
// held, and the questions become rare.
func TestQuietStreamsAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, true)
		r.size = 3
		r.del(1, 11)
		r.publish()
		time.Sleep(BatchQuiet - 1)
		r.want("", "")
		r.del(2, 11) // the stream is not quiet
		r.publish()
		time.Sleep(BatchQuiet - 1)
		r.want("", "")
		time.Sleep(time.Millisecond)
		r.want("", "2 of 11")
		time.Sleep(time.Minute)
		r.want("", strings.TrimPrefix(strings.Repeat(", 2 of 11", 14), ", ")) // after 0.5, 1, 2, 4, and then every 5 s
		r.del(3, 11)
		r.publish()
		time.Sleep(askMost)
		r.want("1@11 2@11 3@11 00.000", "3 of 11")
		time.Sleep(time.Hour)
		r.want("", "")
		r.mu.Lock()
		r.size = 1
		r.mu.Unlock()
		r.del(4, 12)
		r.publish()
		time.Sleep(BatchQuiet)
		r.want("4@12 05.500", "1 of 12")
	})
}

// Events that arrive during a question decide themselves what is complete.
func TestEventsDuringAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, true)
		answer := make(chan bool)
		r.whole = func(context.Context, uint64, int) bool { return <-answer }
		r.del(1, 11)
		r.publish()
		time.Sleep(BatchQuiet)
		synctest.Wait()
		r.del(2, 12)
		r.publish()
		r.want("1@11 00.000", "")
		answer <- true // about revision 11
		r.want("", "")
		time.Sleep(askMost)
		answer <- true
		r.want("2@12 00.250", "")
	})
}

// A stream that ends drops what it holds, also during a question.
func TestCloseDropsHeldDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, true)
		r.whole = func(ctx context.Context, _ uint64, _ int) bool {
			<-ctx.Done()
			return false
		}
		r.del(1, 11)
		r.publish()
		time.Sleep(time.Second)
		r.Close()
		time.Sleep(time.Hour)
		r.want("", "")
	})
}

// Failures of apply reach the reader of the stream, or, for held deletions, end the stream.
func TestApplyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := read(t, true)
		r.size, r.fails = 1, errors.New("diverged")
		r.set(1, 11)
		if err := r.Publish(); !errors.Is(err, r.fails) {
			t.Errorf("Publish: %v", err)
		}
		r.del(1, 12)
		if err := r.Publish(); err != nil {
			t.Errorf("Publish: %v", err)
		}
		time.Sleep(BatchQuiet)
		synctest.Wait()
		if !errors.Is(r.failed, r.fails) {
			t.Errorf("failed with %v", r.failed)
		}
	})
}
