//go:build verify

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// withFiles is an environment variable with the number of files that the test's binary may open when
// it runs as watchproxy.
const withFiles = "WATCHPROXY_TEST_FILES"

func init() {
	n, err := strconv.ParseUint(os.Getenv(withFiles), 10, 31)
	if err != nil {
		return
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		panic(err)
	}
}

// flooded is a proxy with few file descriptors.
type flooded struct {
	t          *testing.T
	url, admin string
	log        *os.File
	events     chan string // upstream sends these to the watch
}

// A flood of connections to a proxy with few file descriptors does not end the proxy or its
// watches. The admin address still responds. After the flood, the proxy answers all clients.
func TestFlood(t *testing.T) {
	f := startFlooded(t)
	watch, err := http.Get(f.url + "/api/v1/configmaps?watch=1") //nolint:noctx // the program's end ends it
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	events := bufio.NewReader(watch.Body)
	f.next(events, "before")

	const attempts, atATime = 20_000, 400 // more than the proxy's descriptors
	var held sync.WaitGroup
	places := make(chan struct{}, atATime)
	for i := range attempts {
		places <- struct{}{}
		held.Go(func() {
			defer func() { <-places }()
			c, err := net.DialTimeout("tcp", strings.TrimPrefix(f.url, "http://"), 10*time.Second)
			if err != nil {
				return
			}
			defer c.Close()
			// The connection stays open for 20 ms unless the proxy closes it earlier.
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = c.Read(make([]byte, 1))
		})
		if i == attempts/2 {
			f.next(events, "amid")
			f.metric()
		}
	}
	held.Wait()
	f.next(events, "after")
	if n := f.metric(); n == 0 {
		t.Error("no refused connection is counted")
	}
	until := time.Now().Add(time.Minute)
	for {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Get(f.url + "/version") //nolint:noctx // the program's end ends it
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(until) {
			t.Fatalf("a minute after the flood, a new client still gets %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	log, err := os.ReadFile(f.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), `"wanted":100000,"connections":112`) {
		t.Errorf("it does not tell that there will be fewer connections than configured:\n%s", log)
	}
}

// next makes upstream send an event, and reads the event from a watch.
func (f *flooded) next(from *bufio.Reader, name string) {
	f.t.Helper()
	f.events <- name
	line, err := from.ReadString('\n')
	if err != nil || !strings.Contains(line, name) {
		f.t.Fatalf("the watch: %q %v", line, err)
	}
}

// metric returns the proxy's count of refused connections.
func (f *flooded) metric() (n float64) {
	f.t.Helper()
	_, text := ask(f.t, http.DefaultClient, http.MethodGet, f.admin+"/metrics", "")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, m := range families["watchproxy_connections_refused_total"].GetMetric() {
		n += m.GetCounter().GetValue()
	}
	return n
}

func startFlooded(t *testing.T) *flooded {
	t.Helper()
	f := &flooded{t: t, events: make(chan string)}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		for {
			_ = http.NewResponseController(w).Flush() // if the client has left, the context ends
			select {
			case name := <-f.events:
				fmt.Fprintln(w, name)
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(api.Close)
	var err error
	if f.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.log.Close() })
	t.Setenv(withFiles, "256")
	f.url, f.admin = start(t, api.URL, f.log).ready(t)
	return f
}
