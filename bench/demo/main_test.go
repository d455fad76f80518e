package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

func TestFlagsAreChecked(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--pods=0", "--pods=0: must be at least 1"},
		{"--informers=-1 --rate=0", "--informers=-1: must be at least 1\n--rate=0: must be at least 1"},
		{"--for=-1s", "--for=-1s: must be at least 1s"},
		{"--watchproxy=/nowhere/watchproxy", "--watchproxy: stat /nowhere/watchproxy: no such file or directory (make build)"},
	} {
		cmd := newCommand()
		cmd.SetArgs(append([]string{"--watchproxy=" + os.Args[0]}, strings.Fields(test.args)...))
		if err := cmd.Execute(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.args, err, strconv.Quote(test.want))
		}
	}
}
