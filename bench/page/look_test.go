//go:build verify

package page

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// colours makes the browser prefer a dark or a light colour scheme.
func colours(scheme string) chromedp.Action[cdp.Empty] {
	return func(ctx context.Context, target *chromedp.Target) (cdp.Empty, error) {
		preference := &emulation.MediaFeature{Name: "prefers-color-scheme", Value: scheme}
		return cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{preference}})
	}
}

// tree returns the accessibility tree, which assistive technology sees.
func tree(ctx context.Context, target *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
	return cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
}

// looks checks the page's layout at several widths. Axe-core checks the contrast of its colours.
func looks(ctx context.Context, t *testing.T) {
	grounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		run(ctx, t, scheme, colours(scheme))
		grounds[evaluate[string](ctx, t, `getComputedStyle(document.body).backgroundColor`)] = true
	}
	if len(grounds) != 2 {
		t.Errorf("light and dark are the same: %v", grounds)
	}
	for _, width := range []int64{320, 390, 768, 1280} {
		run(ctx, t, "resize", chromedp.EmulateViewport(width, 844))
		if got := evaluate[int64](ctx, t, `document.documentElement.scrollWidth`); got > width {
			t.Errorf("%d pixels wide, it is scrolled over %d", width, got)
		}
		// The page does not hide any content to become narrow.
		if got := evaluate[int](ctx, t, `[...document.querySelectorAll("tbody th, tbody td")].filter(e => e.getClientRects().length === 0).length`); got != 0 {
			t.Errorf("%d pixels wide, %d cells are not shown", width, got)
		}
	}
}

// accessible checks the page's content for a screen reader: at any width, it has two tables
// with headers for rows and columns.
func accessible(ctx context.Context, t *testing.T) {
	for _, width := range []int64{390, 1280} {
		run(ctx, t, "resize", chromedp.EmulateViewport(width, 844))
		roles := map[string]int{}
		names := map[string]bool{}
		for _, n := range run(ctx, t, "accessibility tree", tree).Nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role := strings.Trim(string(n.Role.Value), `"`)
			roles[role]++
			if n.Name != nil {
				names[role+" "+strings.Trim(string(n.Name.Value), `"`)] = true
			}
		}
		feeds := evaluate[int](ctx, t, `document.querySelectorAll("#feeds tr").length`)
		forwarded := evaluate[int](ctx, t, `document.querySelectorAll("#forwarded tr").length`)
		if rows := feeds + forwarded; roles["table"] != 2 || roles["row"] != rows+2 || roles["rowheader"] != rows ||
			roles["cell"] != feeds*(feedColumns-1)+forwarded*(forwardedColumns-1) || roles["columnheader"] != feedColumns+forwardedColumns {
			t.Errorf("%d pixels wide: %d and %d rows, roles %v", width, feeds, forwarded, roles)
		}
		for _, name := range []string{"table Feeds", "table Forwarded in the last five minutes", "slider Time shown", "searchbox Show rows with", "columnheader Reason", "heading watchproxy", "columnheader Objects", "rowheader limitranges v1 protobuf"} {
			if !names[name] {
				t.Errorf("%d pixels wide: no %q in %v", width, name, names)
			}
		}
	}
}

// The numbers of columns in the tables.
const feedColumns, forwardedColumns = 10, 4
