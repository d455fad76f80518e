package page

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// browser starts a browser with an empty profile. Exceptions and console messages of its pages fail
// the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := filepath.Join(cluster.Root(), "bin", "chromium")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make bin/chromium", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.NoSandbox, // root may not use the sandbox, and the page is our own
		chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(limit),
		chromedp.Flag("disable-dev-shm-usage", true),
	)
	allocated, release := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(release)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	// The browser lives as long as the context of its first action, so that must not be a short
	// one.
	cluster.MustT(t, chromedp.Listen(ctx, func(event any) { complain(t, event) }))
	return ctx
}

// complain fails a test whose page throws exceptions or writes to its console.
func complain(t *testing.T, event any) {
	t.Helper()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		t.Errorf("exception in the page: %v", e.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		t.Errorf("the page says %s: %v", e.Type, e.Args)
	}
}

// limit limits each wait.
const limit = 2 * time.Minute

// run performs an action in the browser, with a time limit.
func run[T any](ctx context.Context, t *testing.T, what string, action chromedp.Action[T]) T {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	value, err := chromedp.Run(bounded, action)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return value
}

func evaluate[T any](ctx context.Context, t *testing.T, expression string) T {
	t.Helper()
	return run(ctx, t, expression, chromedp.Evaluate[T](expression))
}

// until waits until a JavaScript expression is true. While the browser opens another page, the
// expression may have no value.
func until(ctx context.Context, t *testing.T, expression string) {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	const pause = 50 * time.Millisecond
	for {
		holds, err := chromedp.Run(bounded, chromedp.Evaluate[bool](expression))
		if err == nil && holds {
			return
		}
		if bounded.Err() != nil {
			t.Fatalf("not within %v: %s: %v\n%s", limit, expression, err, evaluate[string](ctx, t, "document.body.innerText"))
		}
		cluster.Pause(bounded, pause)
	}
}

// cell returns an expression for the text of a feed's cell, by resource and column.
func cell(resource, column string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#feeds tr")].find(r => r.firstChild.firstChild.textContent === %q)?.querySelector("[data-label='%s']").textContent`, resource, column)
}

// open starts a proxy, whose users are agent and dashboard, and opens its page.
func open(t *testing.T) (*cluster.Proxy, context.Context) {
	t.Helper()
	api := cluster.APIServerT(t, cluster.Options{Users: users("agent", "dashboard")})
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig, TLS: true, Args: []string{"--authentication=delegated"}})
	ctx := browser(t)
	run(ctx, t, "resize", chromedp.EmulateViewport(1280, 900))
	run(ctx, t, "open the page", chromedp.Navigate(proxy.AdminURL+"/"))
	until(ctx, t, `document.getElementById("connection").textContent === "live"`)
	return proxy, ctx
}

// The page shows the right values, and goes on to show them when the proxy has gone.
func TestPage(t *testing.T) {
	proxy, ctx := open(t)
	client := proxy.Client(tokenOf("agent"))
	if !evaluate[bool](ctx, t, `!document.getElementById("empty").hidden && document.querySelector("table").hidden`) {
		t.Error("without feeds it does not say so")
	}

	// A feed appears, and its figures follow the changes.
	create(t, client, 3)
	list(t, client)
	until(ctx, t, cell("limitranges", "Objects")+` === "3"`)
	until(ctx, t, cell("limitranges", "State")+` === "synced"`)
	newest := create(t, client, 2)
	until(ctx, t, cell("limitranges", "Objects")+` === "5"`)
	until(ctx, t, fmt.Sprintf("Number(%s) >= %s", cell("limitranges", "resourceVersion"), newest))
	watch(t, proxy.Client(tokenOf("dashboard")))
	until(ctx, t, `document.getElementById("watches").textContent === "1"`)
	if ratio := evaluate[string](ctx, t, `document.getElementById("ratio").textContent`); !strings.HasSuffix(ratio, " %") {
		t.Errorf("hit ratio %q", ratio)
	}

	t.Run("history", func(t *testing.T) { remembers(ctx, t) })
	t.Run("alone", func(t *testing.T) { alone(ctx, t) })

	proxy.Kill()
	until(ctx, t, `document.getElementById("connection").textContent.startsWith("connection lost; figures of ")`)
	if got := evaluate[string](ctx, t, cell("limitranges", "Objects")); got != "5" {
		t.Errorf("the figures are gone: %q", got)
	}
}

// alone checks that the page loads nothing from elsewhere. Its content security policy prevents other
// scripts.
func alone(ctx context.Context, t *testing.T) {
	if got := evaluate[[]string](ctx, t, `performance.getEntriesByType("resource").map(e => new URL(e.name).host).filter(h => h !== location.host)`); len(got) != 0 {
		t.Errorf("it loads from %v", got)
	}
	if evaluate[bool](ctx, t, `(() => { const s = document.createElement("script"); s.textContent = "window.intruder = true"; document.head.append(s); return "intruder" in window })()`) {
		t.Error("a script that is not its own runs")
	}
}

// remembers checks the history with made-up answers: time instead of samples, gaps, restarts.
func remembers(ctx context.Context, t *testing.T) {
	const script = `(async () => {
		const h = await import("./history.js?alone"), c = await import("./charts.js?alone");
		const found = [], want = (what, got, wanted) => { if (JSON.stringify(got) !== JSON.stringify(wanted)) found.push(what + ": " + JSON.stringify(got) + " instead of " + JSON.stringify(wanted)); };
		const slow = (n) => ({count: n, seconds: 0, buckets: [{upToSeconds: 1, count: n / 2}, {upToSeconds: 2, count: n}]});
		const none = {count: 0, seconds: 0, buckets: []};
		const status = (up, n) => ({uptimeSeconds: up, version: "v" + up, requests: {cache: n, forwarded: 0, refused: 0}, upstreamRequests: {total: 0},
			errors: {server: n, limited: 0, client: 0}, latency: {cache: slow(n), forwarded: none, delivery: none}});
		h.add(100, status(10, 0)); h.add(101, status(11, 10)); h.add(103, status(13, 50));   // 10/s, 20/s over 2 s
		h.add(120, status(30, 60)); h.add(121, status(31, 60));                              // after a gap: 0/s
		h.add(124, status(2, 5)); h.add(125, status(3, 9));                                  // restarted at 122
		want("rates by time", h.lines("clients"), [[[101, 10], [103, 20]], [[121, 0]], [[125, 4]]]);
		want("nothing sent", h.lines("upstream"), [[[101, 0], [103, 0]], [[121, 0]], [[125, 0]]]);
		want("no latency without requests", h.lines("forwardedMost"), []);
		want("median", h.lines("cacheHalf"), [[[101, 1], [103, 1]], [[125, 1]]]);
		want("99 %", h.lines("cacheMost")[0].map(([, v]) => v.toFixed(2)), ["1.98", "1.98"]);
		want("restarts", h.starts, [{at: 122, version: "v2"}]);
		want("nearest", [h.nearest(101.4).at, h.nearest(110), h.nearest(126).at], [101, null, 125]);
		h.add(240, status(118, 9));
		want("forgotten", [h.lines("clients"), h.starts.length], [[[[121, 0]], [[125, 4]]], 1]);
		want("scales", [1, 4, 4.1, 37, 0.0031, 8e6].map((n) => c.scale(n)).map((s) => [+s.step.toPrecision(3), s.ticks]), [[0.5, 2], [1, 4], [2, 3], [10, 4], [0.001, 4], [2e6, 4]]);
		return found;
	})()`
	for _, wrong := range run(ctx, t, "history", chromedp.Evaluate[[]string](script, chromedp.EvalAwaitPromise)) {
		t.Error(wrong)
	}
}
