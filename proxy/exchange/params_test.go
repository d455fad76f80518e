package exchange

import (
	"errors"
	"net/url"
	"testing"
)

func TestDoubtfulParametersAreForwarded(t *testing.T) {
	for _, query := range []string{
		"resourceVersion=abc", "resourceVersion=-1", "resourceVersion=01", "resourceVersion=1e3",
		"limit=x", "timeoutSeconds=x", "timeoutSeconds=-1", "timeoutSeconds=9223372037", "timeout=x", "timeout=1ns",
		"labelSelector=a=b=c", "labelSelector=(", "fieldSelector=a",
		"export=true", "somethingNew=1", "%zz",
		"shardSelector=", "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"),
	} {
		if _, err := Parse(query); !errors.Is(err, ErrDoubtful) {
			t.Errorf("%q: %v, want it forwarded", query, err)
		}
	}
}

func TestFirstOfRepeatedParametersCounts(t *testing.T) {
	p, err := Parse("resourceVersion=5&resourceVersion=x&limit=3&limit=4&watch=false&watch=true")
	if err != nil || p.RV != 5 || p.Limit != 3 || p.Watch {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestContinueToken(t *testing.T) {
	start, rv, err := DecodeToken(EncodeToken("ns/name", 42, false))
	if err != nil || start != "ns/name\x00" || rv != 42 {
		t.Errorf("got %q, %d, %v", start, rv, err)
	}
	// theirs is a token from kube-apiserver 1.36's cache for a list of one configmap.
	const theirs = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjQ0LCJzdGFydCI6Ii9kZWZhdWx0L2FcdTAwMDAifQ"
	if got := EncodeToken("default/a", 244, false); got != theirs {
		t.Errorf("got %s, upstream %s", got, theirs)
	}
	// ofEtcd is the token of the same page for a resource that kube-apiserver does not cache.
	const ofEtcd = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjQ0LCJzdGFydCI6ImRlZmF1bHQvYVx1MDAwMCJ9"
	if got := EncodeToken("default/a", 244, true); got != ofEtcd {
		t.Errorf("got %s, want %s", got, ofEtcd)
	}
}
