//go:build verify

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

// The page can be used with a mouse, a keyboard, a finger and a screen reader, at any width.
func TestUse(t *testing.T) {
	proxy, ctx := open(t)
	client := proxy.Client(tokenOf("agent"))
	create(t, client, 5)
	list(t, client)
	watch(t, proxy.Client(tokenOf("dashboard")))
	if _, err := client.CoreV1().ResourceQuotas("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, cell("limitranges", "State")+` === "synced"`)
	until(ctx, t, cell("resourcequotas", "State")+` === "synced"`)
	t.Run("charts", func(t *testing.T) { draws(ctx, t, client) })
	t.Run("by keyboard", func(t *testing.T) { byKeyboard(ctx, t) })
	t.Run("by touch", func(t *testing.T) { byTouch(ctx, t) })
	t.Run("axe-core", func(t *testing.T) { axe(ctx, t) })
	t.Run("for eyes", func(t *testing.T) { looks(ctx, t) })
	t.Run("for assistive technology", func(t *testing.T) { accessible(ctx, t) })

	proxy.Kill()
	until(ctx, t, `document.getElementById("connection").textContent.startsWith("connection lost; figures of ")`)
	if evaluate[string](ctx, t, `getComputedStyle(document.querySelector("main")).filter`) == "none" {
		t.Error("old figures look like new ones")
	}
	t.Run("axe-core, connection lost", func(t *testing.T) { axe(ctx, t) })
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

// feeds is an expression for the resources in the table of feeds, in order.
const feeds = `[...document.querySelectorAll("#feeds tr")].map(r => r.firstChild.firstChild.textContent).join(" ")`

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
		if got := evaluate[string](ctx, t, feeds+` + " " + document.querySelector("#feeds-section th").getAttribute("aria-sort")`); got != want {
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
	focus("Resource")
	run(ctx, t, "sort", chromedp.KeyEvent(kb.Enter))
	sorted("limitranges resourcequotas ascending")
	run(ctx, t, "sort again", chromedp.KeyEvent(" "))
	sorted("resourcequotas limitranges descending")
	run(ctx, t, "unsort", chromedp.KeyEvent(kb.Enter))
	if evaluate[bool](ctx, t, `document.querySelector("#feeds-section th").hasAttribute("aria-sort")`) {
		t.Error("it is still sorted")
	}
	evaluate[bool](ctx, t, `(document.getElementById("filter").focus(), true)`)
	run(ctx, t, "filter", chromedp.KeyEvent("QUOTa"))
	until(ctx, t, feeds+` === "resourcequotas" && document.querySelector("#feeds-section .note[role=status]").textContent === "1 of 2 rows" && document.querySelectorAll("#forwarded tr").length === 0`)
	for range len("QUOTa") {
		run(ctx, t, "unfilter", chromedp.KeyEvent(kb.Backspace))
	}
	until(ctx, t, `document.querySelectorAll("#feeds tr").length === 2 && document.querySelectorAll("#forwarded tr").length > 0`)
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
	touch("#feeds-section th:nth-child(3) button", 0.5)
	until(ctx, t, `document.querySelector("#feeds-section th:nth-child(3)").getAttribute("aria-sort") === "descending"`)
	run(ctx, t, "a screen", chromedp.EmulateViewport(1280, 900))
	run(ctx, t, "reload", chromedp.Reload())
	until(ctx, t, `document.querySelectorAll("#feeds tr").length === 2 && document.querySelectorAll("#forwarded tr").length > 0`)
}
