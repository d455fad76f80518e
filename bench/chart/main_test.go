package chart

import (
	"fmt"
	"os"
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
	cluster.Main(m)
}
