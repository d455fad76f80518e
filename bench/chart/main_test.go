package chart

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) {
	if os.Getenv(applicationVariable) != "" && len(os.Args) == 1 {
		if err := application(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	const percent = 400
	debug.SetGCPercent(percent) // rendering leaves much garbage, and this saves a fifth of its time
	cluster.Main(m)
}
