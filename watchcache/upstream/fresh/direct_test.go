package fresh

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Measured durations of upstream's reads expire. Otherwise a wrong duration would stay forever once
// no more reads go to upstream.
func TestFiguresDoNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r latencies
		of := watchcache.Work{Objects: 10}
		r.answered(of, time.Hour, true)
		if takes, _ := r.compare(of, false); takes != time.Hour {
			t.Errorf("it takes %s", takes)
		}
		if takes, _ := r.compare(watchcache.Work{Objects: 10, Fields: true}, false); takes > time.Second {
			t.Errorf("what selects by fields takes %s, too", takes)
		}
		time.Sleep(figureLasts)
		if takes, _ := r.compare(of, false); takes > time.Second {
			t.Errorf("it takes %s for ever", takes)
		}
	})
}

// A failure of upstream, or of a run, does not send more reads to upstream.
func TestFailuresAreNoAnswers(t *testing.T) {
	var r latencies
	of := watchcache.Work{Objects: 10}
	for range 10 {
		r.ran(failed, feed.AskTimeout, 1)
	}
	if _, sooner := r.compare(of, false); sooner {
		t.Error("upstream is asked after failed runs")
	}
	r.ran(confirmed, time.Second, 1)
	r.ran(confirmed, time.Second, 1)
	if _, sooner := r.compare(of, false); !sooner {
		t.Fatal("upstream is not asked")
	}
	r.answered(of, time.Millisecond, false)
	if takes, sooner := r.compare(of, false); sooner || takes < guessBase {
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

// A new epoch may begin between a run's end and the reader's look at the result. The reader does
// not use the new epoch's state as the run's result.
func TestRunOfAnEpochThatIsOver(t *testing.T) {
	c := watchcache.New(object.Resource{}, watchcache.Limits{})
	c.Reset(nil, 100)
	if _, err := notOlderThan(c, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := notOlderThan(c, 101); !errors.Is(err, ErrNotFresh) {
		t.Errorf("got %v", err)
	}
}

// A proof ages while the machine sleeps, too.
func TestProofsAgeInSleep(t *testing.T) {
	const sleep = time.Hour
	if slept, awake := (proof{at: cachetest.BeforeSleep(sleep)}).age(), (proof{at: cachetest.BeforeSleep(0)}).age(); slept < sleep || awake >= sleep {
		t.Errorf("after a sleep of %v it is %v old, and without a sleep %v", sleep, slept, awake)
	}
}
