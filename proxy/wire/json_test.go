package wire

import (
	"encoding/json"
	"testing"
)

func TestListForms(t *testing.T) {
	rest := int64(5)
	page := ListMeta{ResourceVersion: 7, Continue: "tok", Remaining: &rest}
	for name, tc := range map[string]struct {
		form *JSON
		meta ListMeta
		want string
	}{
		"built-in":              {NewJSON("Pod", "PodList", "v1", false), ListMeta{ResourceVersion: 7}, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}` + "\n"},
		"built-in, page":        {NewJSON("Pod", "PodList", "v1", false), page, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"tok","remainingItemCount":5},"items":[]}` + "\n"},
		"custom resource":       {NewJSON("G", "GList", "e.c/v1", true), ListMeta{ResourceVersion: 7}, `{"apiVersion":"e.c/v1","items":[],"kind":"GList","metadata":{"continue":"","resourceVersion":"7"}}` + "\n"},
		"custom resource, page": {NewJSON("G", "GList", "e.c/v1", true), page, `{"apiVersion":"e.c/v1","items":[],"kind":"GList","metadata":{"continue":"tok","remainingItemCount":5,"resourceVersion":"7"}}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(tc.form.AppendListTail(tc.form.AppendListHead(nil, tc.meta), tc.meta))
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	item := []byte(`{"metadata":{"resourceVersion":"9"},"spec":{}}`)
	pod := NewJSON("Pod", "PodList", "v1", false)
	if got, want := string(pod.AppendEvent(nil, "ADDED", item, nil)), `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"},"spec":{}}}`+"\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	stamp := &Stamp{Start: 32, End: 33, ResourceVersion: 1234}
	if got, want := string(pod.AppendEvent(nil, "DELETED", item, stamp)), `{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1234"},"spec":{}}}`+"\n"; got != want {
		t.Errorf("stamped: got  %s\nwant %s", got, want)
	}
	if !json.Valid(AppendRawEvent(nil, "ERROR", []byte(`{"kind":"Status"}`))) {
		t.Error("an ERROR event is not JSON")
	}
}

func TestEventAllocations(t *testing.T) {
	item := []byte(`{"metadata":{"resourceVersion":"9"},"spec":{}}`)
	pod := NewJSON("Pod", "PodList", "v1", false)
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { buf = pod.AppendEvent(buf[:0], "MODIFIED", item, nil) }); n != 0 {
		t.Errorf("an event costs %v allocations, want none", n)
	}
}
