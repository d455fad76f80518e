package watch

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// A pump evaluates only cheap filters.
func TestCheapFilters(t *testing.T) {
	resource := cachetest.Resource()
	for n, cheap := range map[int]bool{1: true, cheapCost: true, cheapCost + 1: false} {
		terms := make([]string, n)
		for i := range terms {
			terms[i] = fmt.Sprintf("a%d!=b", i)
		}
		selector, err := labels.Parse(strings.Join(terms, ","))
		if err != nil {
			t.Fatal(err)
		}
		f, err := filter.New(&resource, "a", selector, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Watch{Params: Params{Filter: f}}).Cheap(); got != cheap {
			t.Errorf("%d requirements: %t", n, got)
		}
	}
}
