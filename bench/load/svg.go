package main

import (
	"fmt"
	"html"
	"strings"
)

// svg draws the chart as a picture. Each scenario shows the servers' times as parts of
// kube-apiserver's time. The colour of the text follows the reader's colour scheme, light or dark.
func (r *report) svg() string {
	const (
		name, width, value = 330, 420, 150 // of the columns, in pixels
		bar, gap, head     = 13, 14, 52
	)
	colours := map[string]string{kubeAPIServer: "#8c959f", ours: "#0969da", theFloor: "#bf8700"}
	var b strings.Builder
	y := head
	text := func(x, y int, anchor, class, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(s))
	}
	for _, row := range r.Rows {
		most := row.Servers[kubeAPIServer]
		if most.Units == 0 {
			continue
		}
		text(name-10, y+2*bar, "end", "name", row.title())
		for _, s := range []string{kubeAPIServer, ours, theFloor} {
			of := row.Servers[s]
			if of.Units == 0 {
				continue
			}
			long := max(1, int(of.each()/most.each()*width))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>`+"\n", name, y, min(long, width), bar-2, colours[s])
			text(name+min(long, width)+6, y+bar-3, "start", "value", processorTime(of))
			y += bar
		}
		y += gap
	}
	body := b.String()
	b.Reset()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Processor time for the same work">`+"\n",
		name+width+value, y)
	b.WriteString("<style>text{font:12px system-ui,sans-serif;fill:#57606a}.name{font-weight:600}" +
		"@media(prefers-color-scheme:dark){text{fill:#c9d1d9}}</style>\n")
	title := fmt.Sprintf("Processor time of servers for a unit of work, %d pods, %s, commit %s, %s", r.Pods, r.Date, r.Commit, r.Machine)
	fmt.Fprintf(&b, `<text x="10" y="18">%s</text>`+"\n", html.EscapeString(title))
	for i, s := range []string{kubeAPIServer, ours, theFloor} {
		fmt.Fprintf(&b, `<rect x="%d" y="28" width="11" height="11" rx="2" fill="%s"/><text x="%d" y="38">%s</text>`+"\n",
			name+i*140, colours[s], name+i*140+16, s)
	}
	return b.String() + body + "</svg>\n"
}
