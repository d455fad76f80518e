package fresh

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A new epoch may begin between a run's end and the reader's look at the result. The reader does
// not use the new epoch's state as the run's result.
func TestRunOfAnEpochThatIsOver(t *testing.T) {
	c := watchcache.New(object.Resource{}, watchcache.Limits{})
	c.Writer().Reset(nil, 100)
	if _, err := notOlderThan(c, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := notOlderThan(c, 101); !errors.Is(err, ErrNotFresh) {
		t.Errorf("got %v", err)
	}
}

// A run that takes longer than the next one does not replace the proof of the next one.
func TestLaterProofsStay(t *testing.T) {
	f, now := &Feed{}, time.Now()
	for i, p := range []proof{{now, 100, 1}, {now.Add(time.Second), 120, 2}, {now.Add(time.Millisecond), 130, 1}} {
		f.proofs.note(p)
		if got, want := f.proofs.last().era, []uint64{1, 2, 2}[i]; got != want {
			t.Errorf("after run %d, the latest proof is of era %d, want %d", i, got, want)
		}
	}
}

// A proof ages while the machine sleeps, too.
func TestProofsAgeInSleep(t *testing.T) {
	const sleep = time.Hour
	if slept, awake := (proof{at: cachetest.BeforeSleep(sleep)}).age(), (proof{at: cachetest.BeforeSleep(0)}).age(); slept < sleep || awake >= sleep {
		t.Errorf("after a sleep of %v it is %v old, and without a sleep %v", sleep, slept, awake)
	}
}
