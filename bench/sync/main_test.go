package main

import (
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	cluster.Main(m)
}

func TestFlagsAreChecked(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--informers=0", "--informers=0: must be at least 1"},
		{"--small=-1 --writes=0", "--small=-1: must be at least 1\n--writes=0: must be at least 1"},
		{"--herds=10,0", "--herds=0: must be at least 1"},
		{"--watchproxy=/nowhere/watchproxy", "--watchproxy: stat /nowhere/watchproxy: no such file or directory (make build)"},
	} {
		cmd := newCommand()
		cmd.SetArgs(append([]string{"--watchproxy=" + os.Args[0]}, strings.Fields(test.args)...))
		if err := cmd.Execute(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %q", test.args, err, test.want)
		}
	}
}
