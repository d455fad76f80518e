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
func browser(t *testing.T, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	path := filepath.Join(cluster.Root(), "bin", "chromium")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make bin/chromium", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.NoSandbox, // root may not use the sandbox, and the page is our own
		chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(cluster.Limit),
		chromedp.Flag("disable-dev-shm-usage", true),
	)
	allocated, release := chromedp.NewExecAllocator(t.Context(), append(options, more...)...)
	t.Cleanup(release)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	// The browser lives as long as the context of its first action, so that must not be a short
	// one.
	if err := chromedp.Listen(ctx, func(event any) { complain(t, event) }); err != nil {
		t.Fatal(err)
	}
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

// run performs an action in the browser, with a time limit.
func run[T any](ctx context.Context, t *testing.T, what string, action chromedp.Action[T]) T {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, cluster.Limit)
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

// until waits until a JavaScript expression is true.
func until(ctx context.Context, t *testing.T, expression string) {
	t.Helper()
	const pause = 50 * time.Millisecond
	for end := time.Now().Add(cluster.Limit); !evaluate[bool](ctx, t, expression); cluster.Pause(ctx, pause) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s\n%s", cluster.Limit, expression, evaluate[string](ctx, t, "document.body.innerText"))
		}
	}
}

// cell returns an expression for the text of a feed's cell, by resource and column.
func cell(resource, column string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#feeds tr")].find(r => r.firstChild.firstChild.textContent === %q)?.querySelector("[data-label='%s']").textContent`, resource, column)
}

func TestPage(t *testing.T) {
	api := cluster.APIServerT(t, cluster.Options{Users: users("agent", "dashboard")})
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig, TLS: true, Args: []string{"--authentication=delegated"}})
	client := proxy.Client(tokenOf("agent"))
	ctx := browser(t)
	run(ctx, t, "resize", chromedp.EmulateViewport(1280, 900))
	run(ctx, t, "open the page", chromedp.Navigate(proxy.AdminURL+"/"))

	until(ctx, t, `document.getElementById("connection").textContent === "live"`)
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
	if !evaluate[bool](ctx, t, fmt.Sprintf("Number(%s) >= %s", cell("limitranges", "resourceVersion"), newest)) {
		t.Errorf("its resourceVersion is before %s", newest)
	}
	watch(t, proxy.Client(tokenOf("dashboard")))
	until(ctx, t, `document.getElementById("watches").textContent === "1"`)
	if ratio := evaluate[string](ctx, t, `document.getElementById("ratio").textContent`); !strings.HasSuffix(ratio, " %") {
		t.Errorf("hit ratio %q", ratio)
	}

	t.Run("users", func(t *testing.T) { names(ctx, t) })
	t.Run("charts", func(t *testing.T) { draws(ctx, t, client) })
	t.Run("history", func(t *testing.T) { remembers(ctx, t) })
	t.Run("by keyboard", func(t *testing.T) { byKeyboard(ctx, t) })
	t.Run("by touch", func(t *testing.T) { byTouch(ctx, t) })
	t.Run("axe-core", func(t *testing.T) { axe(ctx, t) })
	t.Run("for eyes", func(t *testing.T) { looks(ctx, t) })
	t.Run("for assistive technology", func(t *testing.T) { accessible(ctx, t) })
	t.Run("alone", func(t *testing.T) {
		if got := evaluate[[]string](ctx, t, `performance.getEntriesByType("resource").map(e => new URL(e.name).host).filter(h => h !== location.host)`); len(got) != 0 {
			t.Errorf("it loads from %v", got)
		}
		// The page's content security policy prevents other scripts.
		if evaluate[bool](ctx, t, `(() => { const s = document.createElement("script"); s.textContent = "window.intruder = true"; document.head.append(s); return "intruder" in window })()`) {
			t.Error("a script that is not its own runs")
		}
	})

	proxy.Kill()
	until(ctx, t, `document.getElementById("connection").textContent.startsWith("connection lost; figures of ")`)
	if evaluate[string](ctx, t, `getComputedStyle(document.querySelector("main")).filter`) == "none" {
		t.Error("old figures look like new ones")
	}
	if got := evaluate[string](ctx, t, cell("limitranges", "Objects")); got != "5" {
		t.Errorf("the figures are gone: %q", got)
	}
	t.Run("axe-core, connection lost", func(t *testing.T) { axe(ctx, t) })
}
