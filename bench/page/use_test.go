package page

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// column returns an expression for the first words of a table's rows, in order.
func column(table string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#%s tr")].map(r => r.firstChild.firstChild.textContent).join(" ")`, table)
}

// names checks that the page names the users of the last minutes.
func names(ctx context.Context, t *testing.T) {
	until(ctx, t, column("users")+`.split(" ").sort().join(" ") === "agent dashboard"`)
	until(ctx, t, `[...document.querySelectorAll("#users tr")].find(r => r.textContent.startsWith("dashboard"))?.querySelector("[data-label='Watches']").textContent === "1"`)
	if evaluate[string](ctx, t, `document.querySelector("#users [data-label='Requests']").textContent`) == "0" {
		t.Error("the first user has no requests")
	}
	// If the proxy refuses, the page says why.
	refuse := `(() => {
		const real = window.fetch;
		window.fetch = (path, ...more) => path === "users" ? Promise.resolve(new Response("403: not for you", {status: 403})) : real(path, ...more);
	})()`
	run(ctx, t, "refuse users", chromedp.Evaluate[chromedp.Void](refuse))
	until(ctx, t, `document.getElementById("withheld").innerText === "403: not for you" && document.getElementById("users").parentElement.hidden`)
	if got := evaluate[string](ctx, t, `document.getElementById("connection").textContent`); got != "live" {
		t.Errorf("the connection is %q", got)
	}
	run(ctx, t, "reload", chromedp.Reload())
	until(ctx, t, column("users")+`.includes("agent")`)
}

// draws checks the lines and axes of the charts while a client lists.
func draws(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	over, stop := context.WithCancel(t.Context())
	var listing sync.WaitGroup
	defer listing.Wait()
	defer stop()
	listing.Go(func() {
		const pause = 100 * time.Millisecond
		for ; over.Err() == nil; cluster.Pause(over, pause) {
			if _, err := client.CoreV1().LimitRanges("").List(over, metav1.ListOptions{ResourceVersion: "0"}); err != nil && over.Err() == nil {
				t.Error(err)
			}
		}
	})
	until(ctx, t, `[...document.querySelectorAll("#charts figure")].every(f => f.querySelector("path").getAttribute("d") !== "")`)
	if n := evaluate[int](ctx, t, `document.querySelectorAll("#charts figure").length`); n != 3 {
		t.Errorf("%d charts", n)
	}
	// The axis of time has a tick every 30 s of the clock, over two minutes, and the other axis begins at 0.
	ticks := evaluate[[]string](ctx, t, `[...document.querySelector("#charts svg").querySelectorAll(".time")].map(e => e.textContent)`)
	if len(ticks) < 4 || len(ticks) > 5 {
		t.Errorf("ticks of time: %v", ticks)
	}
	for _, tick := range ticks {
		if !strings.HasSuffix(tick, ":00") && !strings.HasSuffix(tick, ":30") {
			t.Errorf("a tick at %s", tick)
		}
	}
	scales := evaluate[[]string](ctx, t, `[...document.querySelectorAll("#charts svg")].map(s => [...s.querySelectorAll("text[text-anchor=end]")].map(e => e.textContent).join(" "))`)
	for _, scale := range scales {
		if !strings.HasPrefix(scale, "0 ") || len(strings.Fields(scale)) < 3 {
			t.Errorf("the scale is %q", scale)
		}
	}
	if !strings.HasSuffix(scales[2], "s") {
		t.Errorf("latencies have no unit: %q", scales[2])
	}
	if n := evaluate[int](ctx, t, `[...document.querySelectorAll("#charts .legend li")].filter(e => e.title.length < 20).length`); n != 0 {
		t.Errorf("%d lines are not explained", n)
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

// byKeyboard sorts, filters and looks back with the keyboard alone.
func byKeyboard(ctx context.Context, t *testing.T) {
	focus := func(label string) {
		t.Helper()
		const presses = 80
		for range presses {
			run(ctx, t, "tab", chromedp.KeyEvent(kb.Tab))
			if evaluate[string](ctx, t, `document.activeElement.textContent || document.activeElement.id`) == label {
				if evaluate[string](ctx, t, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
					t.Errorf("the focus on %s is not visible", label)
				}
				return
			}
		}
		t.Fatalf("%d tabs do not lead to %s", presses, label)
	}
	sorted := func(want string) {
		t.Helper()
		if got := evaluate[string](ctx, t, column("users")+` + " " + document.querySelector("#users-section th").getAttribute("aria-sort")`); got != want {
			t.Errorf("sorted: %q, want %q", got, want)
		}
	}
	focus("moment")
	run(ctx, t, "five back", chromedp.KeyEvent(strings.Repeat(kb.ArrowLeft, 5)))
	if got := evaluate[string](ctx, t, `document.getElementById("moment").getAttribute("aria-valuetext")`); !strings.Contains(got, "s ago") {
		t.Errorf("the moment is %q", got)
	}
	if evaluate[int](ctx, t, `document.querySelectorAll("#charts .chosen").length`) != 3 {
		t.Error("the moment is not in all charts")
	}
	run(ctx, t, "now", chromedp.KeyEvent(kb.End))
	if got := evaluate[string](ctx, t, `document.getElementById("moment-text").textContent`); got != "now" {
		t.Errorf("at the end, the moment is %q", got)
	}
	focus("User")
	run(ctx, t, "sort", chromedp.KeyEvent(kb.Enter))
	sorted("agent dashboard ascending")
	run(ctx, t, "sort again", chromedp.KeyEvent(" "))
	sorted("dashboard agent descending")
	run(ctx, t, "unsort", chromedp.KeyEvent(kb.Enter))
	if evaluate[bool](ctx, t, `document.querySelector("#users-section th").hasAttribute("aria-sort")`) {
		t.Error("it is still sorted")
	}
	evaluate[bool](ctx, t, `(document.getElementById("filter").focus(), true)`)
	run(ctx, t, "filter", chromedp.KeyEvent("DASHb"))
	until(ctx, t, column("users")+` === "dashboard" && document.querySelector("#users-section .note[role=status]").textContent === "1 of 2 rows" && document.querySelectorAll("#feeds tr").length === 0`)
	for range len("DASHb") {
		run(ctx, t, "unfilter", chromedp.KeyEvent(kb.Backspace))
	}
	until(ctx, t, `document.querySelectorAll("#users tr").length === 2 && document.querySelectorAll("#feeds tr").length > 0`)
}

// byTouch looks back by touching a chart, and sorts by touching a head, on a phone.
func byTouch(ctx context.Context, t *testing.T) {
	run(ctx, t, "a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateTouch))
	touch := func(selector string, share float64) {
		t.Helper()
		at := evaluate[[]float64](ctx, t, fmt.Sprintf(`(() => {
			const e = document.querySelector(%q);
			e.scrollIntoView({block: "center"});
			const box = e.getBoundingClientRect();
			return [box.left + box.width * %v, box.top + box.height / 2, box.height];
		})()`, selector, share))
		const enough = 24 // pixels, by WCAG 2.2 (2.5.8)
		if at[2] < enough {
			t.Errorf("%s is %v pixels high", selector, at[2])
		}
		for _, event := range []*input.DispatchTouchEventParams{
			{Type: input.DispatchTouchEventTypeTouchStart, TouchPoints: []*input.TouchPoint{{X: at[0], Y: at[1]}}}, {Type: input.DispatchTouchEventTypeTouchEnd, TouchPoints: []*input.TouchPoint{}},
		} {
			run(ctx, t, "touch "+selector, func(ctx context.Context, target *chromedp.Target) (cdp.Empty, error) {
				return cdp.Call(ctx, target, input.DispatchTouchEvent, *event)
			})
		}
	}
	touch("#charts svg", 0.9)
	until(ctx, t, `document.getElementById("moment-text").textContent.includes("s ago")`)
	touch("#users-section th:nth-child(2) button", 0.5)
	until(ctx, t, `document.querySelector("#users-section th:nth-child(2)").getAttribute("aria-sort") === "descending"`)
	run(ctx, t, "a screen", chromedp.EmulateViewport(1280, 900))
	run(ctx, t, "reload", chromedp.Reload())
	until(ctx, t, `document.querySelectorAll("#users tr").length === 2 && document.querySelectorAll("#feeds tr").length > 0`)
}
