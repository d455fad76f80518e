package upstream

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
)

// slowMetadata is an upstream that takes long for a list of metadata: 200 times as long as for a probe.
const probeTakes, metadataTakes = time.Millisecond, 200 * time.Millisecond

func allowDirect(o *Options) { o.Direct = true }

// A read of few objects is not kept waiting for what takes longer than upstream takes for it. A read of many is, and a
// watch; and all are the cache's again soon after nobody has written elsewhere any more.
func TestFewObjectsAreLeftToUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, smallObjects+1)
		feed := openFeed(t, f, allowDirect)
		f.delays(probeTakes, metadataTakes)
		const few, many = 10, 100_000
		const answers = 5 * time.Millisecond // of few
		left := 0
		read := func(objects int) (waited time.Duration, err error) {
			began := time.Now()
			_, _, err = feed.Fresh(t.Context(), objects)
			waited = time.Since(began)
			if errors.Is(err, errSooner) {
				left++
				feed.Answered(objects, answers, true)
			} else if err != nil {
				t.Fatal(err)
			}
			return waited, err
		}
		slow := 0
		for range 100 {
			f.elsewhere()
			waited, _ := read(few)
			if waited > 2*answers+earlyAfter {
				t.Errorf("a read of few waited for %s", waited)
			}
			if waited > 5*time.Millisecond {
				slow++
			}
			time.Sleep(50 * time.Millisecond)
		}
		if left < 95 || slow > 5 {
			t.Errorf("%d of 100 reads were left to upstream, and %d waited", left, slow)
		}
		for _, objects := range []int{many, -1} {
			f.elsewhere()
			if _, err := read(objects); err != nil {
				t.Errorf("a read of %d objects: %v", objects, err)
			}
		}
		if n := f.count("metadata"); n > 8 {
			t.Errorf("metadata was listed %d times in five seconds", n)
		}
		left = 0
		time.Sleep(exploreMost)
		for range 10 {
			_, _ = read(few)
			time.Sleep(2 * exploreEvery)
		}
		left = 0
		_, _ = read(few)
		if left > 0 {
			t.Error("nobody writes, and reads are left to upstream")
		}
	})
}

// Of reads that wait long, a few are left to upstream, whatever the crowd: it may be slow because it has enough to do.
func TestFewReadsLeaveEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, smallObjects+1)
		feed := openFeed(t, f, allowDirect)
		f.delays(2*time.Second, 0)
		errs := make(chan error)
		const crowd = 100
		for range crowd {
			go func() {
				_, _, err := feed.Fresh(t.Context(), 10)
				errs <- err
			}()
		}
		left := 0
		for range crowd {
			if err := <-errs; errors.Is(err, errSooner) {
				left++
			} else if err != nil {
				t.Error(err)
			}
		}
		if left == 0 || left > earlyBurst+1 {
			t.Errorf("%d reads of %d were left to upstream", left, crowd)
		}
	})
}

// What upstream fails to answer is no reason to leave more to it.
func TestFailuresAreNoAnswers(t *testing.T) {
	var r roads
	r.ran("metadata", time.Second, 1)
	if _, sooner := r.compare(10); !sooner {
		t.Fatal("upstream is not asked")
	}
	r.answered(10, time.Millisecond, false)
	if takes, sooner := r.compare(10); sooner || takes < guessBase {
		t.Errorf("it takes %s, sooner: %t", takes, sooner)
	}
}

func TestSizes(t *testing.T) {
	last := 0
	for objects := range 1 << 20 {
		s := sizeOf(objects)
		if s < last || s > last+1 || s >= sizes {
			t.Fatalf("%d objects are of size %d, fewer are of %d", objects, s, last)
		}
		last = s
	}
	for _, odd := range []int{-1, 1 << 40} {
		if s := sizeOf(odd); s < 0 || s >= sizes {
			t.Errorf("%d objects are of size %d", odd, s)
		}
	}
}

// Within its maxAge, a read waits for nothing and tells the truth about how old the state may be: nothing that was written
// before that is missing.
func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = time.Second
		f := newFake()
		fill(f, tinyObjects+1)
		feed := openFeed(t, f, func(o *Options) {
			o.Resources = map[schema.GroupResource]ResourceOptions{configmaps.GroupResource(): {MaxAge: most}}
		})
		f.delays(probeTakes, metadataTakes)
		f.stall(true)
		type moment struct {
			at  time.Time
			rev uint64
		}
		var past []moment
		aged := 0
		for i := range 400 {
			f.set(fmt.Sprintf("o%03d", i%7), fmt.Sprint(i))
			past = append(past, moment{time.Now(), f.mu.rev})
			began := time.Now()
			s, age, err := feed.Fresh(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			if age > most {
				t.Errorf("a state of %s ago", age)
			}
			if age > 0 {
				aged++
				if waited := time.Since(began); waited > 0 {
					t.Errorf("waited for %s", waited)
				}
			}
			for _, m := range past {
				if !m.at.After(began.Add(-age)) && s.ResourceVersion() < m.rev {
					t.Errorf("said to be of %s ago, and misses what was written %s ago", age, began.Sub(m.at))
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if aged < 300 {
			t.Errorf("%d reads of 400 were answered at once", aged)
		}
		f.locked(func() { f.mu.down = errors.New("away") })
		time.Sleep(most + time.Millisecond)
		if _, age, err := feed.Fresh(t.Context(), -1); err == nil {
			t.Errorf("answered with a state of %s ago", age)
		}
	})
}

// A get joins a probe that others wait for if the ledger proves what it asks, and asks for none itself.
func TestGetsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feed := feedWithLedger(t, f)
		joins := func() bool { return feed.keeper.feeds.Joins(configmaps, watchcache.JSON) }
		f.other("leases")
		same(t, f, fresh(t, f, feed))
		if joins() {
			t.Error("nobody reads, and a get would ask")
		}
		f.delays(10*time.Millisecond, 0)
		answered := make(chan struct{})
		for range 2 { // the first is on its way, the second waits for the next
			go func() {
				fresh(t, f, feed)
				answered <- struct{}{}
			}()
			time.Sleep(time.Millisecond)
		}
		if !joins() {
			t.Error("a get does not join")
		}
		if feed.keeper.feeds.Joins(configmaps, watchcache.Protobuf) {
			t.Error("a get would start a feed")
		}
		feed.keeper.ledger.forget()
		if joins() {
			t.Error("a get joins without proof")
		}
		<-answered
		<-answered
	})
}
