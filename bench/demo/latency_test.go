package main

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var l latency
	l.observe(time.Hour) // before the measured time
	earlier := l.snapshot()
	if got := l.snapshot().minus(earlier).quantile(.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
	for i := range 1000 {
		l.observe(time.Duration(i+1) * time.Millisecond)
	}
	l.observe(0)
	h := l.snapshot().minus(earlier)
	for q, exact := range map[float64]time.Duration{.5: 500 * time.Millisecond, .99: 990 * time.Millisecond, 1: time.Second} {
		if got := h.quantile(q); got < exact || got > exact*105/100 {
			t.Errorf("quantile %v is %v, exactly %v", q, got, exact)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", 12345678: "12,345,678"} {
		if got := count(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
}
