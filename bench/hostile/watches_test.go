package hostile

import (
	"context"
	"fmt"
	"net/http"
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
	closes := func(protocol string, target string) func(*attack, int) {
		return func(a *attack, _ int) {
			c := a.client(protocol)
			for a.turn() {
				if resp := a.send(c, http.MethodGet, target, asAttacker(), nil); resp != nil {
					resp.Body.Close()
				}
			}
		}
	}
	return []behaviour{
		row("thousands of one user", 3, 20, 1000, streams(1000, nil, func(f *frames, _ int) bool {
			_, ok := f.get(quiet, asAttacker())
			return ok
		})),
		row("hundreds, a connection each", 200, 2000, 200, unread(quiet)),
		row("all of the state, unread, 200 on a connection", 1, 4, 500, streams(200, []http2.Setting{window(64 << 10)}, func(f *frames, _ int) bool {
			_, ok := f.get(cachedWatch+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", asAttacker())
			return ok
		})),
		{
			name: "watches: events of 30 KB that nobody reads", clients: 100, most: 300, rate: 200, small: true,
			do:     unread(attackedConfigMaps + "?watch=true&resourceVersion=0&timeoutSeconds=600"),
			beside: writeLarge,
		},
		{
			name: "watches: events of 30 KB that nobody reads, 200 on a connection", clients: 4, most: 10, rate: 1000,
			do: streams(200, []http2.Setting{window(0)}, func(f *frames, _ int) bool {
				_, ok := f.get(attackedConfigMaps+"?watch=true&timeoutSeconds=600&resourceVersion=0&fieldSelector=metadata.name%3Dlarge-0", asAttacker())
				return ok
			}),
			beside: writeLarge,
		},
		{
			name: "watches: Tables of an object with 20,000 labels", clients: 8, most: 16, rate: 200, beside: writeLabels,
			do: streams(20, nil, func(f *frames, _ int) bool {
				_, ok := f.get(attackedConfigMaps+"?watch=true&timeoutSeconds=600&resourceVersion=0&fieldSelector=metadata.name%3D"+labelledName,
					asAttacker("Accept", table))
				return ok
			}),
		},
		row("opened and closed, HTTP2", 8, 16, 500, closes(http2Protocol, cachedWatch)),
		row("opened and closed, HTTP1", 8, 16, 100, closes(http1, cachedWatch)),
		row("opened and reset at once", 4, 8, 50, flood(20, nil, func(f *frames, _ int) bool {
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
		row("of the most recent state", 8, 16, 100, closes(http2Protocol, attackedPodsPath+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")),
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
			if a.asks(cachedWatch, h) {
				a.stay()
			}
		}),
	}
}

// unread sends a request and does not read its answer beyond the head.
func unread(path string) func(*attack, int) {
	return func(a *attack, _ int) {
		if !a.turn() {
			return
		}
		if a.asks(path, asAttacker()) {
			a.stay()
		}
	}
}

// writeLarge changes an object of 30 KB during the row.
func writeLarge(a *attack) {
	a.writes(func(ctx context.Context, patch []byte, _ int) error {
		_, err := a.w.admin.CoreV1().ConfigMaps(attackerSpace).Patch(ctx, "large-0", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// writeLabels changes an object with many labels during the row.
func writeLabels(a *attack) {
	a.writes(func(ctx context.Context, patch []byte, _ int) error {
		_, err := a.w.admin.CoreV1().ConfigMaps(attackerSpace).Patch(ctx, labelledName, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// writePods changes pods during the row.
func writePods(a *attack) {
	a.writes(func(ctx context.Context, patch []byte, i int) error {
		_, err := a.w.admin.CoreV1().Pods(attackerSpace).Patch(ctx, podName(attackerSpace, i%10), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (a *attack) writes(write func(ctx context.Context, patch []byte, i int) error) {
	for i := 0; a.ctx.Err() == nil; i++ {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"n":"%d"}}}`, i)
		if err := write(a.ctx, patch, i); err != nil && a.ctx.Err() == nil {
			a.got("write failed: " + err.Error())
		}
		cluster.Pause(a.ctx, 20*time.Millisecond)
	}
}
