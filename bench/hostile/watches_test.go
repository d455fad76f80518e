package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// watches are clients with very many watches.
func watches() []behaviour {
	row := func(name string, clients, most, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "watches: " + name, clients: clients, most: most, rate: rate, do: do}
	}
	quiet := cachedWatch + "&fieldSelector=metadata.name%3Dnone"
	closes := func(protocol string, target func(a *attack) string) func(*attack, int) {
		return func(a *attack, _ int) {
			c := a.client(protocol)
			for a.turn() {
				if resp := a.send(c, http.MethodGet, target(a), asAttacker(), nil); resp != nil {
					resp.Body.Close()
				}
			}
		}
	}
	late := func(a *attack) string {
		return fmt.Sprintf("%s?watch=true&resourceVersion=%s&timeoutSeconds=600", attackedConfigMaps, a.w.old)
	}
	return []behaviour{
		withAfter(row("from before the cache, opened and reset at once", 4, 8, 50, flood(true, 10, nil, func(f *frames, _ int) bool {
			stream, ok := f.get(late(f.a), asAttacker())
			return ok && f.frame(func() error { return f.WriteRSTStream(stream, http2.ErrCodeCancel) })
		})), lateIsServed),
		withAfter(row("from before the cache, left open", 8, 16, 100, streams(20, nil, func(f *frames, _ int) bool {
			_, ok := f.get(late(f.a), asAttacker())
			return ok
		})), lateIsServed),
		row("thousands of one user", 3, 20, 1000, streams(1000, nil, func(f *frames, _ int) bool {
			_, ok := f.get(quiet, asAttacker())
			return ok
		})),
		row("hundreds, a connection each", 200, 2000, 200, unread(quiet)),
		row("all of the state, unread, 200 on a connection", 1, 4, 500, streams(200, []http2.Setting{window(64 << 10)}, func(f *frames, _ int) bool {
			_, ok := f.get(cachedWatch+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", asAttacker())
			return ok
		})),
		row("opened and closed, HTTP2", 8, 16, 500, closes(http2Protocol, func(*attack) string { return cachedWatch })),
		row("opened and closed, HTTP1", 8, 16, 100, closes(http1, func(*attack) string { return cachedWatch })),
		row("opened and reset at once", 4, 8, 50, flood(true, 20, nil, func(f *frames, _ int) bool {
			stream, ok := f.get(cachedWatch, asAttacker())
			return ok && f.frame(func() error { return f.WriteRSTStream(stream, http2.ErrCodeCancel) })
		})),
		row("retried after a 410", 64, 128, 200, gets(http2Protocol, func(int64) string { return attackedPodsPath + "?watch=true&resourceVersion=1&timeoutSeconds=5" })),
		row("from the future", 8, 16, 200, gets(http2Protocol, func(i int64) string {
			return fmt.Sprintf("%s?watch=true&timeoutSeconds=1&resourceVersion=%d", attackedPodsPath, 1<<40+i)
		})),
		row("that end after a second", 8, 16, 200, gets(http2Protocol, func(i int64) string {
			return attackedPodsPath + "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3D" + made(i)
		})),
		row("of the most recent state", 8, 16, 100, closes(http2Protocol, func(*attack) string {
			return attackedPodsPath + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		})),
		row("denied", 8, 16, 200, gets(http2Protocol, func(i int64) string {
			return deniedPodsPath + "?watch=true&resourceVersion=0&fieldSelector=metadata.name%3D" + made(i)
		})).refused(),
		row("by WebSocket, unread", 3, 300, 100, func(a *attack, _ int) {
			if !a.turn() {
				return
			}
			h := upgradeToWebSocket()
			h.Set("Authorization", "Bearer "+tokenOf(attackerUser))
			h.Set("Origin", "https://localhost")
			if _, _, resp := a.asks(http.MethodGet, cachedWatch, h); resp != nil {
				a.stay()
			}
		}),
	}
}

func withAfter(b behaviour, after func(*attack) error) behaviour {
	b.after = after
	return b
}

// lateIsServed checks that a watch from before the cache's history is still served: its first event
// must not be an error.
func lateIsServed(a *attack) error {
	c := a.client(http2Protocol)
	resp := a.send(c, http.MethodGet, fmt.Sprintf("%s?watch=true&resourceVersion=%s&timeoutSeconds=5", attackedConfigMaps, a.w.old), asAttacker(), nil)
	if resp == nil {
		return errors.New("a late watch has no answer")
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	switch {
	case err != nil:
		return fmt.Errorf("a late watch shows %.200q: %w", line, err)
	case !strings.Contains(line, `"ADDED"`):
		return fmt.Errorf("a late watch shows %.200q", line)
	}
	return nil
}

// writeLarge changes an object of 30 KB during the row.
func writeLarge(a *attack, ready func()) {
	a.writes(ready, func(ctx context.Context, patch []byte, _ int) error {
		_, err := a.w.admin.CoreV1().ConfigMaps(attackerSpace).Patch(ctx, "large-0", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// writePods changes pods during the row.
func writePods(a *attack, ready func()) {
	a.writes(ready, func(ctx context.Context, patch []byte, i int) error {
		_, err := a.w.admin.CoreV1().Pods(attackerSpace).Patch(ctx, podName(attackerSpace, i%10), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (a *attack) writes(ready func(), write func(ctx context.Context, patch []byte, i int) error) {
	ready()
	for i := 0; a.ctx.Err() == nil; i++ {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"n":"%d"}}}`, i)
		if err := write(a.ctx, patch, i); err != nil && a.ctx.Err() == nil {
			a.got("write failed: " + err.Error())
		}
		cluster.Pause(a.ctx, 20*time.Millisecond)
	}
}
