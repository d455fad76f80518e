package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes are connections to a server that has its manners, after a while.
func pipes(manner string, after time.Duration, opened *atomic.Int64) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		opened.Add(1)
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			for in := bufio.NewReader(theirs); ; {
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				time.Sleep(after)
				if !manners[manner](theirs, req.URL.Path) {
					return
				}
			}
		}()
		return ours, nil
	}
}

func TestLaneTimes(t *testing.T) {
	setup := func(t *testing.T, manner string, after time.Duration) (l *lanes, opened, others *atomic.Int64) {
		opened, others = new(atomic.Int64), new(atomic.Int64)
		l = &lanes{otherwise: elsewhere(others), base: &url.URL{Scheme: "http", Host: "upstream"}, dial: pipes(manner, after, opened)}
		t.Cleanup(func() {
			l.stop()
			time.Sleep(laneRest + time.Minute) // for the timers
		})
		return l, opened, others
	}
	get := func(t *testing.T, l *lanes) (header http.Header, took time.Duration) {
		began := time.Now()
		resp, err := l.get(t.Context(), "/path")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "/path" {
			t.Fatalf("answer %q, %v, to /path", body, err)
		}
		return resp.Header, time.Since(began)
	}
	t.Run("demand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, opened, others := setup(t, "polite", 0)
			for range 5 {
				get(t, l)
				time.Sleep(2 * laneDemand)
			}
			if opened.Load() != 0 || others.Load() != 5 {
				t.Errorf("%d connections were opened for rare gets, %d went elsewhere", opened.Load(), others.Load())
			}
			get(t, l)
			get(t, l)
			synctest.Wait()
			if opened.Load() != 1 || others.Load() != 7 {
				t.Errorf("%d connections were opened for frequent gets, %d went elsewhere", opened.Load(), others.Load())
			}
			if get(t, l); others.Load() != 7 {
				t.Error("the lane was not used")
			}
		})
	})
	t.Run("rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, _ := setup(t, "polite", 0)
			get(t, l)
			get(t, l)
			synctest.Wait()
			time.Sleep(2*laneRest + time.Second)
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.mu.idle) != 0 || l.mu.open != 0 || l.mu.closing {
				t.Errorf("%d connections without work are kept, %d open", len(l.mu.idle), l.mu.open)
			}
		})
	})
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, opened, others := setup(t, "polite", time.Hour)
			defer time.Sleep(2 * time.Hour) // for the server
			get(t, l)
			get(t, l)
			synctest.Wait()
			header, took := get(t, l)
			if header.Get("Elsewhere") == "" || took < laneSilence || took > 2*laneSilence {
				t.Errorf("a get by a silent lane took %s: %v", took, header)
			}
			get(t, l)
			get(t, l)
			synctest.Wait()
			if opened.Load() != 1 || others.Load() != 5 {
				t.Errorf("%d connections were opened to a server that had just been silent, %d gets went elsewhere", opened.Load(), others.Load())
			}
		})
	})
	t.Run("pause in a body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, others := setup(t, "after a pause", 0)
			get(t, l)
			get(t, l)
			synctest.Wait()
			if _, took := get(t, l); others.Load() != 2 || took < 2*laneSilence {
				t.Errorf("a get whose body pauses took %s, %d went elsewhere", took, others.Load())
			}
		})
	})
	t.Run("never used", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, opened, _ := setup(t, "polite", 0)
			get(t, l)
			get(t, l)
			synctest.Wait()
			time.Sleep(laneNew + time.Second) // kube-apiserver closes it soon
			get(t, l)
			get(t, l)
			synctest.Wait()
			if opened.Load() != 2 {
				t.Errorf("%d connections were opened, as the first was not used in time", opened.Load())
			}
		})
	})
	t.Run("client leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, others := setup(t, "polite", time.Hour)
			defer time.Sleep(2 * time.Hour)
			get(t, l)
			get(t, l)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := l.get(ctx, "/"); err == nil || others.Load() != 2 {
				t.Errorf("a get whose client left ended with %v, and %d went elsewhere", err, others.Load())
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.mu.open != 0 || !l.mu.failed.IsZero() {
				t.Errorf("%d connections are open; failed %v", l.mu.open, l.mu.failed)
			}
		})
	})
}
