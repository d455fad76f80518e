package object

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func mustNew(t *testing.T, r *Resource, namespace, labelSelector, fieldSelector string) *Filter {
	t.Helper()
	ls, err := labels.Parse(labelSelector)
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFilter(r, namespace, ls, fields.ParseSelectorOrDie(fieldSelector))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilterFields(t *testing.T) {
	for text, ok := range map[string]bool{
		"metadata.name=x": true, "metadata.namespace!=x": true, "spec.nodeName=x": true, "status.phase=x,spec.nodeName!=y": true,
		"spec.hostNetwork=true": false, "metadata.uid=x": false, "status.phase=x,spec.host=y": false, "spec=x": false,
		"spec.nodeName=\xff": false, "metadata.name=n\xff": false, "status.phase!=a\ufffd": false, "metadata.name=é": true,
	} {
		_, err := NewFilter(pods, "", nil, fields.ParseSelectorOrDie(text))
		var unsupported *UnsupportedFieldError
		if (err == nil) != ok || !ok && !errors.As(err, &unsupported) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := NewFilter(nodes, "", nil, fields.ParseSelectorOrDie("metadata.namespace=x")); err == nil {
		t.Error("nodes have no namespace to select by")
	}
	if from, to := mustNew(t, nodes, "", "", "metadata.name=n1").KeyRange(nodes); from != "n1" || to != "n1\x00" {
		t.Errorf("one node is [%q, %q)", from, to)
	}
}

func TestInterestNarrows(t *testing.T) {
	for _, test := range []struct {
		namespace, fields string
		by                int
		value             string
	}{
		{"", "", 0, ""},
		{"a", "", ByNamespace, "a"},
		{"a", "metadata.name=x", ByName, "a/x"},
		{"", "metadata.name=x", 0, ""},
		{"", "metadata.name=x,metadata.namespace=a", ByName, "a/x"},
		{"", "metadata.namespace=a", ByNamespace, "a"},
		{"", "metadata.namespace!=a", 0, ""},
		{"a", "metadata.namespace=b", ByNamespace, "a"},
		{"", "spec.nodeName=n1", 0, "n1"},
		{"", "spec.nodeName!=n1", 0, ""},
		{"", "spec.nodeName=", 0, ""},
		{"a", "status.phase=Running", ByNamespace, "a"},
		{"", "status.phase=Running", 1, "Running"},
		{"a", "spec.nodeName=n1", 0, "n1"},
		{"", "status.phase=Running,spec.nodeName=n1", 0, "n1"},
		{"", "spec.nodeName=n1,status.phase=Running", 0, "n1"},
	} {
		t.Run(fmt.Sprint(test.namespace, " ", test.fields), func(t *testing.T) {
			got := mustNew(t, pods, test.namespace, "", test.fields).Interest()
			if want := (Interest{By: test.by, Value: test.value}); got != want {
				t.Errorf("interest is %+v, want %+v", got, want)
			}
		})
	}
}

// The cost is one for each compared value of labels and fields, and more for each field that must
// be read from the object's bytes.
func TestFilterCost(t *testing.T) {
	for _, c := range []struct {
		labels, fields string
		want           int
	}{
		{"", "", 0},
		{"app=web", "", 1},
		{"app=web,!old,tier in (a,b,c),n>5", "", 6},
		{"", "metadata.name=web,spec.nodeName!=n1", 2},
		{"app", "status.phase!=Failed", 2 + readCost},
		{"", "status.phase!=Failed,metadata.name!=a,status.phase!=Succeeded", 3 + readCost}, // read once
	} {
		if got := mustNew(t, pods, "", c.labels, c.fields).Cost(); got != c.want {
			t.Errorf("%q %q costs %d, want %d", c.labels, c.fields, got, c.want)
		}
	}
}
