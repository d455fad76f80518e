package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// terms is a label selector of n requirements that selects what has no labels.
func terms(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("!k%d", i)
	}
	return strings.Join(all, ",")
}

// A selector that is too long is upstream's, before anything is made of it.
func TestLongSelectorsAreForwarded(t *testing.T) {
	values := "k in (" + strings.TrimSuffix(strings.Repeat("v,", selectorTerms+1), ",") + ")"
	fields := strings.TrimSuffix(strings.Repeat("metadata.name!=a,", selectorTerms+1), ",")
	for query, forwarded := range map[string]bool{
		"labelSelector=" + terms(selectorTerms):   false,
		"labelSelector=" + terms(selectorTerms+1): true,
		"labelSelector=" + values:                 true,
		"fieldSelector=" + fields:                 true,
	} {
		if _, err := parseParams(query); errors.Is(err, Beyond) != forwarded {
			t.Errorf("%.30s… of %d bytes: %v", query, len(query), err)
		}
	}
}

// A watch whose filter is dear gets its events while the pump is held up.
func TestDearFilterIsNotThePumps(t *testing.T) {
	c, _ := cachetest.Roomy(t)
	s, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, testLimits(), nil)
	transport := protocolTransport(t, "http/1.1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address.String()+watchTarget+"1&labelSelector="+terms(32+1), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s.pump.mu.Lock() // nobody gets into the queue
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
	}()
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(resp.Body).ReadString('\n') // empty if there is none
		line <- text
	}()
	select {
	case text := <-line:
		if !strings.Contains(text, `"resourceVersion":"2"`) {
			t.Errorf("it got %q", text)
		}
	case <-time.After(testWait):
		t.Error("it waits for the pump")
	}
	s.pump.mu.Unlock()
	<-applied
}
