package wire

import (
	"net/url"
	"strings"
	"testing"
)

// Parameter finds what url.ParseQuery finds.
func FuzzParameter(f *testing.F) {
	for _, query := range []string{
		"", "watch", "watch=", "watch=1&watch=0", "%77atch=1", "watch=%zz&watch=%31", "watch=a;b&watch=1", "x;watch=1", "&&watch=1",
		"=1", "wat+ch=1", "watch=a=b", "watch=a+b", "%zz=1&watch=1", strings.Repeat("&", 9999) + "watch=1", strings.Repeat("&", 9998) + "watch=1",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, _ := url.ParseQuery(query)
		for _, name := range []string{"watch", "x"} {
			want := values[name]
			got, ok := Parameter(query, name)
			if ok != (len(want) > 0) || ok && got != want[0] {
				t.Errorf("%.99q: %q is %q, %t, want %q", query, name, got, ok, want)
			}
		}
	})
}

// A query of an unknown client costs no memory.
func TestParameterAllocations(t *testing.T) {
	query := strings.Repeat("a=%41&", 1000) + "pretty=1"
	if n := testing.AllocsPerRun(10, func() { Parameter(query, "pretty") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
