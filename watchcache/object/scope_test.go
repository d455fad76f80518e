package object

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func want(t *testing.T, namespace, name, fieldSelector, labelSelector string) Want {
	t.Helper()
	ls, err := labels.Parse(labelSelector)
	if err != nil {
		t.Fatal(err)
	}
	return Want{Namespace: namespace, Name: name, Fields: fields.ParseSelectorOrDie(fieldSelector), Labels: ls}
}

// A scope contains a read only if each of its requirements is one of the read's.
func TestScopeContains(t *testing.T) {
	for _, test := range []struct {
		scope Scope
		in    []Want
		out   []Want
	}{
		{
			Scope{},
			[]Want{{}, {Namespace: "a"}, {Namespace: "a", Name: "x"}, want(t, "", "", "spec.nodeName=n", "app=web")},
			nil,
		},
		{
			Scope{Namespace: "a"},
			[]Want{{Namespace: "a"}, {Namespace: "a", Name: "x"}, want(t, "a", "", "metadata.namespace=b", "")},
			[]Want{
				{},
				{Namespace: "b"},
				{Name: "a"},
				{Namespace: "b", Name: "x"},
				want(t, "", "", "metadata.namespace=a", ""),
				want(t, "", "", "metadata.namespace!=a", ""), want(t, "b", "", "metadata.namespace=a", ""),
			},
		},
		{
			Scope{Fields: "spec.nodeName=n"},
			[]Want{want(t, "", "", "spec.nodeName=n", ""), want(t, "a", "", "spec.nodeName=n,status.phase!=Failed", "app")},
			[]Want{
				{},
				{Namespace: "a", Name: "x"},
				want(t, "", "", "spec.nodeName!=n", ""), want(t, "", "", "spec.nodeName=m", ""),
				want(t, "", "", "spec.host=n", ""), want(t, "a", "x", "spec.nodeName=n", ""),
			},
		},
		{
			Scope{Labels: "app=web,tier in (a,b)"},
			[]Want{want(t, "", "", "", "tier in (b,a),app=web"), want(t, "a", "", "spec.nodeName=n", "app=web,tier in (a,b),new")},
			[]Want{
				{},
				{Namespace: "a", Name: "x"},
				want(t, "", "", "", "app=web"), want(t, "", "", "", "app=web,tier=a"),
				want(t, "", "", "", "app in (web,db),tier in (a,b)"), want(t, "a", "x", "", "app=web,tier in (a,b)"),
				{Labels: labels.Nothing()},
			},
		},
		{
			Scope{Namespace: "a", Fields: "metadata.name=x"},
			[]Want{{Namespace: "a", Name: "x"}, want(t, "a", "", "metadata.name=x", "app")},
			[]Want{{}, {Namespace: "a"}, {Namespace: "a", Name: "y"}, {Namespace: "b", Name: "x"}, want(t, "a", "", "metadata.name!=x", ""), want(t, "", "", "metadata.name=x", "")},
		},
	} {
		for _, w := range test.in {
			if !test.scope.Contains(w) {
				t.Errorf("%q does not contain %+v", test.scope, w)
			}
		}
		for _, w := range test.out {
			if test.scope.Contains(w) {
				t.Errorf("%q contains %+v", test.scope, w)
			}
		}
	}
}

func TestNewScope(t *testing.T) {
	s, err := NewScope("a", "spec.nodeName==n,status.phase=Running", "b in (y,x),a=1")
	if err != nil || s != (Scope{"a", "spec.nodeName=n,status.phase=Running", "a=1,b in (x,y)"}) {
		t.Errorf("%+v, %v", s, err)
	}
	if text := s.String(); text != "namespace=a fieldSelector=spec.nodeName=n,status.phase=Running labelSelector=a=1,b in (x,y)" {
		t.Error(text)
	}
	for _, bad := range [][2]string{{"spec", ""}, {"", "a=!"}} {
		if s, err := NewScope("", bad[0], bad[1]); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
	}
}
