// Package cluster is the cluster that tests and commands of the bench run against: a real kube-apiserver with etcd
// (bin/kubeapi, see bench/kubeapi) and watchproxy itself. It has what all of them need: endpoints and relays, waiting,
// certificates, kubeconfigs, users and their rights, audit logs, custom resources, a kubelet.
//
// [Main] is the TestMain of all packages. It defines -seed, ends what tests share ([Shared]), and fails the package if
// a goroutine is left. Functions that end in T fail the test instead of returning an error, and what they start ends
// with the test.
//
// Each is a child process in a process group of its own, so that a Ctrl-C in the terminal reaches only the parent,
// which then stops its children in order. The kernel kills them when the parent dies without having done so: a test
// that panics, times out or is killed leaves nothing behind.
//
// A process is ready when it says so in a line on its standard output. All that it prints goes to a file, whose end is
// part of the error when something fails.
//
// What a process costs and counts is read from /proc and from its metrics.
//
// Linux only.
package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Root returns the directory of watchproxy's go.mod.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); !ok || err != nil {
		panic(fmt.Sprintf("BUG: %s is not the root of the module this program was built from", root))
	}
	return root
}

// Kubectl returns the path of bin/kubectl.
func Kubectl() (string, error) { return tool("kubectl") }

// tool returns the path of a binary that is built from bench/kubeapi.
func tool(name string) (string, error) {
	path := filepath.Join(Root(), "bin", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is missing: make kubeapi kubectl", path)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
