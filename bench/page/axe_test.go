//go:build verify

package page

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// violation is a rule of axe-core that the page breaks.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML, FailureSummary string }
}

// axe runs all rules of WCAG 2.2, levels A and AA, and of good practice, in both colour schemes and at
// the widths of a phone and a screen, with all details open.
func axe(ctx context.Context, t *testing.T) {
	source, err := os.ReadFile(filepath.Join(cluster.Root(), "bin", "axe.min.js"))
	if err != nil {
		t.Fatal("axe-core is missing: make bin/axe.min.js fetches it by npm")
	}
	run(ctx, t, "load axe-core", chromedp.Evaluate[chromedp.Void](string(source)))
	evaluate[bool](ctx, t, `[...document.querySelectorAll("details")].every(d => d.open = true)`)
	const rules = `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})`
	for _, scheme := range []string{"light", "dark"} {
		run(ctx, t, scheme, colours(scheme))
		for _, width := range []int64{390, 1280} {
			run(ctx, t, "resize", chromedp.EmulateViewport(width, 844))
			broken := run(ctx, t, "axe-core", chromedp.Evaluate[[]violation](rules+".then(found => found.violations)", chromedp.EvalAwaitPromise))
			for _, v := range broken {
				var where []string
				for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
					where = append(where, n.HTML+"\n"+n.FailureSummary)
				}
				t.Errorf("%s, %d pixels wide: %s (%s): %s, %d times:\n%s", scheme, width, v.ID, v.Impact, v.Help, len(v.Nodes), strings.Join(where, "\n"))
			}
		}
	}
	// The rules find what is wrong.
	const wrong = `(() => { const img = document.createElement("img"); img.src = "data:,"; document.querySelector("main").append(img); })()`
	run(ctx, t, "break the page", chromedp.Evaluate[chromedp.Void](wrong))
	found := run(ctx, t, "axe-core", chromedp.Evaluate[[]violation](rules+".then(found => found.violations)", chromedp.EvalAwaitPromise))
	if len(found) != 1 || found[0].ID != "image-alt" {
		t.Errorf("a picture without a text: %v", fmt.Sprint(found))
	}
	evaluate[bool](ctx, t, `(document.querySelector("main > img").remove(), true)`)
}
