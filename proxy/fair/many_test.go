//go:build verify

package fair

import (
	"fmt"
	"testing"
	"time"
)

// However many users wait for more to be free, each claim that is granted is looked at once. If all claims
// were looked at for each, this would take 6 s.
func TestManyAreGrantedAtOnce(t *testing.T) {
	const n = 20_000
	p := NewPool(n*100, true)
	name := func(kind string, i int) string { return fmt.Sprint(kind, i) }
	for i := range n {
		p.Try(name("greedy", i), 10)
	}
	p.Try("holder", n*90)
	for i := range n {
		_, _ = p.enter(name("greedy", i), n*60)
		_, _ = p.enter(name("small", i), 1)
	}
	began := time.Now()
	p.Give("holder", n*90)
	if took := time.Since(began); p.Waiting() != n || took > time.Second {
		t.Errorf("%d of %d claims wait after %s", p.Waiting(), 2*n, took)
	}
}
