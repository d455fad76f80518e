// Package cluster runs the cluster for the tests and commands of the bench: a real kube-apiserver
// with etcd (bin/kubeapi, see bench/kubeapi) and watchproxy itself. It also has their shared
// fixtures: endpoints and relays, waiting, certificates, kubeconfigs, users and their rights, audit
// logs, custom resources, a kubelet.
//
// [Main] is the TestMain of all packages. It defines -seed, ends the fixtures that tests share
// ([Shared]), and fails the package if a goroutine is left. Functions with a final T in their names
// fail the test instead of returning an error. Everything that they start ends with the test. An
// [Endpoint] chooses the protocol of each request at random: HTTP/2 for three of four.
//
// Each server is a child process in its own process group. So a Ctrl-C in the terminal reaches only
// the parent, which then stops its children in order. If the parent dies first, the kernel kills
// the children. So no processes remain even if a test panics, times out or is killed.
//
// A process announces that it is ready in a line on standard output. Its output goes to a file. If
// something fails, the error contains the end of this file.
//
// The processor time and memory of a process are read from /proc, and its counters from its
// metrics.
//
// The package works on Linux only.
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
		return "", fmt.Errorf("%s is missing: make bin/%s", path, name)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
