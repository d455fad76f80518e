package object

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// Labels have the values that a decoder would read: in any order, few or many, and some of them twice.
// Many are found by a binary search.
func TestSet(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		want := map[string]string{}
		var inJSON []string
		var inProto labelSet
		n := r.IntN(3 * fewLabels)
		for range n {
			k, v := fmt.Sprint("k", r.IntN(2*n)), fmt.Sprint(r.IntN(100))
			want[k] = v
			inJSON = append(inJSON, fmt.Sprintf("%q:%q", k, v))
			inProto.Add(k, v)
		}
		inProto.Order()
		text := "{" + strings.Join(inJSON, ",") + "}"
		if decoded := map[string]string{}; json.Unmarshal([]byte(text), &decoded) != nil || fmt.Sprint(decoded) != fmt.Sprint(want) {
			t.Fatalf("%s is %v", text, decoded)
		}
		inJSONSet, ok := readLabels(gjson.Parse(text))
		if !ok {
			t.Fatalf("%s is refused", text)
		}
		for name, set := range map[string]labelSet{"JSON": inJSONSet, "protobuf": inProto} {
			for i := range 2 * n {
				k := fmt.Sprint("k", i)
				v, ok := set.Lookup(k)
				if wanted, wants := want[k]; v != wanted || ok != wants || set.Has(k) != wants || set.Get(k) != wanted {
					t.Fatalf("%s: %s is %q, %t in %s", name, k, v, ok, text)
				}
			}
			if ordered := slices.IsSortedFunc(set, func(a, b label) int { return strings.Compare(a.Key.Value(), b.Key.Value()) }); len(set) > fewLabels && !ordered {
				t.Fatalf("%s: %d labels are not in order", name, len(set))
			}
		}
	}
}
