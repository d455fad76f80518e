package age

import "testing"

// Rows of the same version are the same if they differ only in their ages.
func TestSameCells(t *testing.T) {
	row := func(cells string) []byte { return []byte(`{"cells":` + cells) }
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`["a","Running",3,"5d"]`, `["a","Running",3,"5d"]`, true},
		{`["a","Running",3,"5d"]`, `["a","Running",3,"5d4h"]`, true},
		{`["a","3 (5m ago)","5d"]`, `["a","3 (2h4m ago)","5d"]`, true},
		{`["a","3 (<invalid> ago)","<invalid>"]`, `["a","3 (1s ago)","0s"]`, true},
		{`["a","5m ago","5d"]`, `["a","2h4m ago","5d"]`, true},
		{`["a","in 5m","5d"]`, `["a","5m ago","5d"]`, true},
		{`["a","3 (5m ago)","5d"]`, `["a","4 (5m ago)","5d"]`, false},
		{`["a","3 (5m ago)","5d"]`, `["a","3","5d"]`, false},
		{`["a","Running",3,"5d"]`, `["a","Pending",3,"5d"]`, false},
		{`["a","Running",3,"5d"]`, `["a","Running",4,"5d"]`, false},
		{`["a","Running",3,"5d"]`, `["a","Running",3,"<unknown>"]`, false},
		{`["a","Running",3,"5d"]`, `["a","Running",3]`, false},
		{`["a",null]`, `["a","5d"]`, false},
		{`["a","AGE"]`, `["a","5d"]`, false},
	} {
		if SameCells(row(c.a), row(c.b)) != c.same || SameCells(row(c.b), row(c.a)) != c.same {
			t.Errorf("%s and %s: not %v", c.a, c.b, c.same)
		}
	}
}
