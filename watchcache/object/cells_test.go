package object

import (
	"fmt"
	"testing"

	"github.com/tidwall/gjson"
)

// Rows of the same version are the same if they differ only in their ages.
func TestSameCells(t *testing.T) {
	row := func(cells string) *Object {
		t.Helper()
		o, err := pods.ParseRow(gjson.Parse(fmt.Sprintf(
			`{"cells":%s,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","namespace":"b","uid":"c","resourceVersion":"1"}}}`, cells)))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`["a","Running",3,"5d"]`, `["a","Running",3,"5d"]`, true},
		{`["a","Running",3,"5d"]`, `["a","Running",3,"5d4h"]`, true},
		{`["a","3 (5m ago)","5d"]`, `["a","3 (2h4m ago)","5d"]`, true},
		{`["a","3 (<invalid> ago)","<invalid>"]`, `["a","3 (1s ago)","0s"]`, true},
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
