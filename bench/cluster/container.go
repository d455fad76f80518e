package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// AccountPath is the path at which a container has the files of its service account.
const AccountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// Container is a program that runs as in a pod's container: it has an environment and mounts of its
// own. Its other files are those of this machine, except in /run.
type Container struct {
	Command []string
	Env     []string          // all of its environment
	Mounts  map[string]string // directories by their paths in the container, which are in /run or /var/run
	Ready   string            // prefix of the line by which it announces that it is ready
	Log     string            // file to which all output is appended
	process *process
}

// Start returns when the container is ready, with the rest of the line that announces this.
func (c *Container) Start(ctx context.Context) (announced string, err error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	mounts, err := json.Marshal(c.Mounts)
	if err != nil {
		return "", err
	}
	p, announced, err := start(ctx, command{
		path: own, args: append([]string{podArgument, string(mounts)}, c.Command...),
		ready: c.Ready, log: c.Log, env: c.Env, unshare: true,
	})
	if err == nil {
		c.process = p
	}
	return announced, err
}

// Stop ends the container with SIGTERM, and fails if its exit code is not 0.
func (c *Container) Stop() error { return c.process.stop() }

// Kill ends the container with SIGKILL.
func (c *Container) Kill() { c.process.kill() }

// Output returns what the container has printed.
func (c *Container) Output() string { return contentOf(c.Log) }

// unshareMounts gives a child its own mounts. Without root's rights, the child is root in a user
// namespace of its own.
func unshareMounts(attr *syscall.SysProcAttr) {
	attr.Unshareflags = syscall.CLONE_NEWNS
	if uid := os.Getuid(); uid != 0 {
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// podArgument makes a test's binary mount directories and then become a command.
const podArgument = "cluster-container"

// enterPod becomes the command of a [Container], if this process is its child.
func enterPod() {
	if len(os.Args) < 4 || os.Args[1] != podArgument {
		return
	}
	err := mount(os.Args[2])
	if err == nil {
		err = syscall.Exec(os.Args[3], os.Args[3:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(1)
}

func mount(directories string) error {
	var mounts map[string]string
	if err := json.Unmarshal([]byte(directories), &mounts); err != nil {
		return err
	}
	for _, run := range []string{"/run", "/var/run"} {
		run, err := filepath.EvalSymlinks(run) // the second is usually a link to the first
		if err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", run, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", run, err)
		}
	}
	for path, dir := range mounts {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(dir, path, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return nil
}
