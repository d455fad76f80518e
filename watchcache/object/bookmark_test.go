package object

import (
	"errors"
	"testing"
)

func TestBookmarkForms(t *testing.T) {
	for name, tc := range map[string]struct {
		resource         *Resource
		plain, annotated string
	}{
		"built-in": {
			pods,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208"},"spec":{"containers":null},"status":{}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}`,
		},
		"with an annotation of its own": {
			pods,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208","annotations":{"deprecated.daemonset.template.generation":"0"}},"spec":{}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208","annotations":{"deprecated.daemonset.template.generation":"0","k8s.io/initial-events-end":"true"}},"spec":{}}`,
		},
		"between two of its own": {
			widgets,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"a":"}","z":"0"},"resourceVersion":"208"}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"a":"}","k8s.io/initial-events-end":"true","z":"0"},"resourceVersion":"208"}}`,
		},
		"custom resource": {
			widgets,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"resourceVersion":"208"}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"208"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Both forms can be derived from either form.
			for _, seen := range []string{tc.plain, tc.annotated} {
				b, rv, err := tc.resource.ParseBookmark([]byte(seen))
				if err != nil || rv != 208 {
					t.Fatalf("%s: %d, %v", seen, rv, err)
				}
				if got := string(b.Append(nil, 208, false)); got != tc.plain {
					t.Errorf("plain, learnt from %s:\n got %s\nwant %s", seen, got, tc.plain)
				}
				if got := string(b.Append(nil, 208, true)); got != tc.annotated {
					t.Errorf("annotated, learnt from %s:\n got %s\nwant %s", seen, got, tc.annotated)
				}
			}
		})
	}
}

func TestBookmarksThatAreNotUnderstoodAreRefused(t *testing.T) {
	for object, want := range map[string]error{
		`{"metadata":{"resourceVersion":"opaque"}}`: ErrOpaqueResourceVersion,
		`{"metadata":{}}`: ErrOpaqueResourceVersion,
		`{"metadata":`:    ErrMalformed,
		`{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"1"}}`:                                                                    ErrMalformed,
		`{"metadata":{"resourceVersion":"1","resourceVersi\u006fn":"1"}}`:                                                                            ErrMalformed,
		`{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"false"}}}`:                                                   ErrMalformed,
		`{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"},"annotations":{"k8s.io/initial-events-end":"true"}}}`: ErrMalformed,
		`{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true","k8s.io\/initial-events-end":"true"}}}`:                ErrMalformed,
		`{"metadata":{"resourceVersion":"1","annotations":[]}}`:                                                                                      ErrMalformed,
		`{"metadata":{"resourceVersion":"\u0031"}}`:                                                                                                  ErrOpaqueResourceVersion,
		`{"metadata":[{"resourceVersion":"1"}]}`:                                                                                                     ErrMalformed,
		`{"metadata":{"resourceVersion":"1"}} {"metadata":{}}`:                                                                                       ErrMalformed,
	} {
		if _, _, err := pods.ParseBookmark([]byte(object)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", object, err, want)
		}
	}
}
