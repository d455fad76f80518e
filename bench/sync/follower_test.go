package main

import (
	"bufio"
	"strings"
	"testing"
)

const (
	addedEvent    = `{"type":"ADDED","object":{"kind":"ConfigMap"}}` + "\n"
	bookmarkEvent = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}` + "\n"
	endEvent      = `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
)

func TestCountInitial(t *testing.T) {
	// An object may contain any text, at any position of the reader's buffer.
	long := `{"type":"ADDED","object":{"data":"` + strings.Repeat(`{\"type\":\"ADDED\" "k8s.io/initial-events-end":"true"`, 300) + `"}}` + "\n"
	for _, test := range []struct {
		name, events string
		want         int
		err          string
	}{
		{"empty", endEvent, 0, ""},
		{"some", addedEvent + addedEvent + endEvent + addedEvent, 2, ""},
		{"changed meanwhile", addedEvent + addedEvent + `{"type":"DELETED"}` + "\n" + `{"type":"MODIFIED"}` + "\n" + bookmarkEvent + endEvent, 1, ""},
		{"long", long + addedEvent + long + endEvent, 3, ""},
		{"cut", addedEvent + bookmarkEvent, 0, "ended before the initial events did: EOF"},
		{"cut in the end", endEvent[:len(endEvent)-1], 0, "ended before the initial events did: EOF"},
		{"failed", addedEvent + `{"type":"ERROR","object":{}}` + "\n", 0, "not an event of a collection: {\"type\":\"ERROR\",\"object\":{}}\n"},
		{"no watch", "{}\n", 0, "not an event of a collection: {}\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := countInitial(bufio.NewReaderSize(strings.NewReader(test.events), 1<<10))
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %d, %v, want %d", got, err, test.want)
			}
		})
	}
}
