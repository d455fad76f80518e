//go:build verify

package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// asDemo names the environment variable that makes the test binary the demo.
const asDemo = "DEMO_TEST_AS_DEMO"

func init() {
	if os.Getenv(asDemo) != "" {
		main()
		os.Exit(0)
	}
}

// startable returns the demo with few pods and informers, and the directory of its temporary files.
// The kernel kills the demo if the thread that starts it ends, so the test keeps its thread.
func startable(t *testing.T, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	proxy, err := cluster.BuildProxy(t.Context(), false)
	cluster.MustT(t, err)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), os.Args[0], append(args, "--watchproxy", proxy, "--pods", "50", "--informers", "10")...)
	cmd.Env = append(os.Environ(), asDemo+"=1", "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, dir
}

// users returns the command lines of the processes that use the directory.
func users(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	cluster.MustT(t, err)
	var found []string
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(dir)) {
			found = append(found, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	if running := users(t, dir); len(running) > 0 {
		t.Errorf("still running: %q", running)
	}
	files, err := os.ReadDir(dir)
	cluster.MustT(t, err)
	if len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

// Without the proxy each informer has a watch at the apiserver, and with it there is one.
func TestDemoExits(t *testing.T) {
	cmd, dir := startable(t, "--for", "3s", "--exit")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkNothingLeft(t, dir)
	t.Logf("%s", out)
	if n := bytes.Count(out, []byte("\nevery informer has seen every update")); n != 2 {
		t.Errorf("it tells %d times instead of twice that nothing was lost", n)
	}
	without, with, found := strings.Cut(string(out), "now through watchproxy")
	if !found || !strings.Contains(with, "THROUGH WATCHPROXY") {
		t.Error("it does not compare")
	}
	// A line begins with the time, the watches at the apiserver and those at the proxy.
	for out, watches := range map[string]string{without: "10 +0", with: "1 +10"} {
		seconds := regexp.MustCompile(`(?m)^ +[0-9]+s .*`).FindAllString(out, -1)
		right := regexp.MustCompile(`^ +[0-9]+s +` + watches + ` `)
		if len(seconds) < 2 || slices.ContainsFunc(seconds, func(line string) bool { return !right.MatchString(line) }) {
			t.Errorf("the lines are\n%s", strings.Join(seconds, "\n"))
		}
	}
}

// The demo stays up, its kubectl commands work, and Ctrl-C ends everything.
func TestDemoIsInterrupted(t *testing.T) {
	kubectl := cluster.KubectlT(t)
	cmd, dir := startable(t, "--for", "1s")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	cluster.MustT(t, err)
	cluster.MustT(t, cmd.Start())
	var environment string
	shown := bufio.NewScanner(stdout)
	for shown.Scan() && environment == "" {
		_, environment, _ = strings.Cut(shown.Text(), "export ")
	}
	if environment == "" {
		t.Fatal("it ended without an invitation")
	}
	if running := users(t, dir); len(running) != 2 {
		t.Errorf("running are %q instead of an apiserver and a proxy", running)
	}

	get := exec.CommandContext(t.Context(), kubectl, "get", "pods", "--all-namespaces", "--output=name")
	get.Env = append(os.Environ(), strings.Fields(environment)...)
	if out, err := get.CombinedOutput(); err != nil || bytes.Count(out, []byte("pod/")) != 50 {
		t.Errorf("kubectl: %v\n%s", err, out)
	}

	cluster.MustT(t, cmd.Process.Signal(os.Interrupt))
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, dir)
}
