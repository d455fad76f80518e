package cluster

import (
	"fmt"
	"path/filepath"
	"testing"
)

// Component is a part of a cluster other than the apiserver, in a child process: the controllers,
// the scheduler, or the kubelet of a node (bin/kubenode, see bench/kubeapi).
type Component struct {
	Dir     string // its log, and the files of a kubelet
	name    string
	process *process
}

// ComponentT starts a component with arguments of bin/kubenode. It ends with the test.
func ComponentT(tb testing.TB, name string, args ...string) *Component {
	tb.Helper()
	path, err := tool("kubenode")
	MustT(tb, err)
	c := &Component{name: name, Dir: tb.TempDir()}
	if name == "kubelet" {
		args = append(args, "--root-dir", c.Dir)
	}
	c.process, _, err = start(tb.Context(), command{
		path: path, args: append([]string{name}, args...), ready: "kubenode started: ",
		log: filepath.Join(c.Dir, "log"),
	})
	MustT(tb, err)
	tb.Cleanup(func() {
		c.process.kill() // a kubelet needs no orderly end
		if tb.Failed() {
			tb.Logf("end of the log of %s %v:\n%s", name, args, tail(c.process.output()))
		}
	})
	return c
}

// CheckT fails the test if the component has ended.
func (c *Component) CheckT(tb testing.TB) {
	tb.Helper()
	select {
	case <-c.process.exited:
		tb.Fatal(c.process.withOutput(fmt.Errorf("%s has ended: %w", c.name, c.process.exit())))
	default:
	}
}
