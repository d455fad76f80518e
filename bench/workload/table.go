package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is aligned text: the first columns to the left, the others, which are numbers, to the right.
type table struct {
	left int // columns
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.left {
				line.WriteString(cell + gap + "  ")
			} else {
				line.WriteString(gap + cell + "  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
