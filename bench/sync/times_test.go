package main

import (
	"testing"
	"time"
)

func TestTimes(t *testing.T) {
	for _, test := range []struct {
		times         times
		median, worst time.Duration
	}{
		{nil, 0, 0},
		{times{5}, 5, 5},
		{times{9, 1}, 1, 9},
		{times{9, 1, 4}, 4, 9},
		{times{2, 9, 1, 4}, 2, 9},
	} {
		if median, worst := test.times.median(), test.times.worst(); median != test.median || worst != test.worst {
			t.Errorf("%v: median %v, worst %v; want %v, %v", test.times, median, worst, test.median, test.worst)
		}
	}
}
