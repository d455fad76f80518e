package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// chart draws the processor time of the servers for the same work. The slowest server of each
// scenario has the longest bar.
func (r *report) chart(w io.Writer) {
	const width = 50 // of the longest bar
	name := 0
	for _, row := range r.Rows {
		name = max(name, utf8.RuneCountInString(row.title()))
	}
	for _, row := range r.Rows {
		if row.Servers[kubeAPIServer].Units == 0 {
			continue
		}
		most := 0.0
		for _, s := range row.Servers {
			most = max(most, s.each())
		}
		title := row.title()
		for _, s := range []string{kubeAPIServer, ours, theFloor} {
			of := row.Servers[s]
			if of.Units == 0 {
				continue
			}
			bar := strings.Repeat("█", max(1, int(math.Round(of.each()/most*width))))
			fmt.Fprintf(w, "%-*s  %-*s  %s %s\n", name, title, len(kubeAPIServer), s, bar, processorTime(of))
			title = ""
		}
	}
}

func (r row) title() string {
	return fmt.Sprintf("%s, %d ×", r.Scenario, r.Clients)
}
