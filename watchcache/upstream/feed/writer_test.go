package feed

import (
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Once another state has been adopted, nothing that continues the state before is written.
func TestWriterRefusesAnOtherEpoch(t *testing.T) {
	cache, state := cachetest.ConfigMaps(t, 3)
	w := &Writer{cache: cache, log: zap.NewNop()}
	before, err := w.adopt(nil, state.ResourceVersion()+1)
	if err != nil {
		t.Fatal(err)
	}
	wrote := 0
	write := func() error {
		wrote++
		return nil
	}
	if err := w.Write(before, write); err != nil || wrote != 1 {
		t.Fatalf("the state's own epoch: %v, written %d times", err, wrote)
	}
	changes := []watchcache.Change{{Object: cachetest.ConfigMap(t, 1, int(state.ResourceVersion())+2)}}
	after, err := w.adopt(changes, state.ResourceVersion()+2)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(before, write); !errors.Is(err, errOtherEpoch) || wrote != 1 {
		t.Errorf("an abandoned epoch: %v, written %d times", err, wrote)
	}
	w.end()
	if err := w.Write(after, write); !errors.Is(err, errOtherEpoch) || wrote != 1 {
		t.Errorf("a stopped feed: %v, written %d times", err, wrote)
	}
}
