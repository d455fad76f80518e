package watchcache_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	podBookmark       = `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"},"spec":{"containers":null},"status":{}}`
	podAnnotated      = `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}`
	oldPodBookmark    = `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"containers":null},"status":{}}`
	oldPodAnnotated   = `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}`
	widgetBookmark    = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"resourceVersion":"12"}}`
	widgetAnnotated   = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"12"}}`
	anotherAnnotation = `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"false"}}}`
)

func TestBookmark(t *testing.T) {
	for name, test := range map[string]struct {
		r                     *watchcache.Resource
		src, plain, annotated string
	}{
		"pod":              {watchcache.Pods, podBookmark, podBookmark, podAnnotated},
		"pod annotated":    {watchcache.Pods, podAnnotated, podBookmark, podAnnotated},
		"widget":           {watchcache.Widgets, widgetBookmark, widgetBookmark, widgetAnnotated},
		"widget annotated": {watchcache.Widgets, widgetAnnotated, widgetBookmark, widgetAnnotated},
		"white space":      {watchcache.Pods, " " + podBookmark + "\n", podBookmark, podAnnotated},
	} {
		t.Run(name, func(t *testing.T) {
			src := []byte(test.src)
			b, rv, err := test.r.ParseBookmark(src)
			if err != nil || rv != 12 {
				t.Fatalf("at %d: %v", rv, err)
			}
			if got := watchcache.IsInitialEventsEnd(src); got != (test.src == test.annotated) {
				t.Errorf("IsInitialEventsEnd: %t", got)
			}
			clear(src) // the caller may use it again
			for range 2 {
				if got := string(b.Append(nil, 12, false)); got != test.plain {
					t.Errorf("plain is %s", got)
				}
				if got := string(b.Append([]byte("x"), 12, true)); got != "x"+test.annotated {
					t.Errorf("annotated is %s", got)
				}
			}
			for _, end := range []bool{false, true} {
				again, rv, err := test.r.ParseBookmark(b.Append(nil, 18446744073709551615, end))
				if err != nil || rv != 18446744073709551615 {
					t.Fatalf("at %d: %v", rv, err)
				}
				if got := string(again.Append(nil, 12, true)); got != test.annotated {
					t.Errorf("learnt again it is %s", got)
				}
			}
		})
	}
}

// Older apiservers write a creationTimestamp into bookmarks, too.
func TestBookmarkWithCreationTimestamp(t *testing.T) {
	for _, src := range []string{oldPodBookmark, oldPodAnnotated} {
		b, _, err := watchcache.Pods.ParseBookmark([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b.Append(nil, 12, false)); got != oldPodBookmark {
			t.Errorf("plain is %s", got)
		}
		annotated := b.Append(nil, 12, true)
		if !json.Valid(annotated) || !watchcache.IsInitialEventsEnd(annotated) {
			t.Errorf("annotated is %s", annotated)
		}
	}
}

func TestBookmarkRefuses(t *testing.T) {
	for _, src := range []string{
		``, `{`, `{}`, `null`, `[]`, `{"metadata":{}}`, `{"metadata":{"resourceVersion":12}}`, `{"metadata":{"resourceVersion":""}}`,
		`{"metadata":{"resourceVersion":"012"}}`, `{"metadata":{"resourceVersion":"1\u0032"}}`, `{"metadata":null}`,
	} {
		b, _, err := watchcache.Pods.ParseBookmark([]byte(src))
		if !errors.Is(err, watchcache.ErrMalformedObject) && !errors.Is(err, watchcache.ErrOpaqueResourceVersion) {
			t.Errorf("%s: %v, %v", src, b, err)
		}
	}
	if watchcache.IsInitialEventsEnd([]byte(anotherAnnotation)) {
		t.Error("an annotation that says false ends the initial events")
	}
}

func TestCacheKeepsBookmark(t *testing.T) {
	c := filled(1)
	if c.Bookmark() != nil {
		t.Error("a bookmark from nowhere")
	}
	b, _, err := watchcache.Pods.ParseBookmark([]byte(podBookmark))
	if err != nil {
		t.Fatal(err)
	}
	if c.SetBookmark(b); c.Bookmark() != b {
		t.Error("another bookmark")
	}
}
