package kubectl

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

// both runs a command with both servers at the same time.
func both[T any](run func(front int) T) (said [2]T) {
	var running sync.WaitGroup
	for front := range said {
		running.Go(func() { said[front] = run(front) })
	}
	running.Wait()
	return said
}

// same runs kubectl with both servers and compares the outcomes.
func same(t *testing.T, fronts [2]clients.Front, i clients.Invocation) clients.Outcome {
	t.Helper()
	said := both(func(front int) clients.Outcome { return fronts[front].Run(t, i) })
	want, got := said[0], said[1]
	if stable(got) != stable(want) {
		t.Errorf("kubectl %s\n--- %s\n%s--- %s\n%s", strings.Join(i.Args, " "), fronts[0].Name, stable(want), fronts[1].Name, stable(got))
	}
	if want.Code == 0 && want.Stdout == "" && want.Stderr == "" {
		t.Errorf("kubectl %s says nothing", strings.Join(i.Args, " "))
	}
	return got
}

var (
	// age matches kubectl's durations and the padding after them.
	age = regexp.MustCompile(`\b(\d+[dhms]){1,2}\b *|<invalid> *`)
	// logTime matches the beginning of a klog line.
	logTime = regexp.MustCompile(`(?m)^([EWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `)
	// address matches a server's address, which differs between the two servers.
	address = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`)
)

// stable returns the outcome without the parts that differ between two runs of the same command.
func stable(o clients.Outcome) string {
	mask := func(s string) string {
		s = logTime.ReplaceAllString(s, "$1 ")
		s = address.ReplaceAllString(s, "SERVER")
		return age.ReplaceAllString(s, "AGE ")
	}
	return mask(o.Stdout) + "--- standard error\n" + mask(o.Stderr) + "--- exit code " + strconv.Itoa(o.Code) + "\n"
}
