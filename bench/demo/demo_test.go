//go:build verify

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

// The figures of each second are plausible: without the proxy each informer has a watch at the
// apiserver, and with it there is one.
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
	for _, r := range rows(t, without) {
		if r.watchesUp != 10 || r.watchesOut != 0 || r.p50 <= 0 {
			t.Errorf("directly: %+v", r)
		}
	}
	for _, r := range rows(t, with) {
		if r.watchesUp != 1 || r.watchesOut != 10 || r.eventsUp <= 0 || r.eventsOut <= r.eventsUp || r.requestsOut != 10 ||
			r.requestsUp < 1 || r.requestsUp > 25 || r.p50 <= 0 || r.p50 > r.p99 || r.memory < 1 || r.apiMemory < 1 {
			t.Errorf("through watchproxy: %+v", r)
		}
	}
}

// row is a line of figures.
type row struct {
	time                                string
	watchesUp, watchesOut               float64
	eventsUp, eventsOut                 float64
	requestsUp, requestsOut             float64
	p50, p99                            float64
	memory, proxyCPU, apiMemory, apiCPU float64
}

func rows(t *testing.T, out string) (all []row) {
	t.Helper()
	start, units := regexp.MustCompile(`^ +\d+s `), strings.NewReplacer(" MB", "", " %", "")
	for line := range strings.Lines(out) {
		if !start.MatchString(line) {
			continue
		}
		var r row
		_, err := fmt.Sscan(units.Replace(line), &r.time, &r.watchesUp, &r.watchesOut, &r.eventsUp, &r.eventsOut,
			&r.requestsUp, &r.requestsOut, &r.p50, &r.p99, &r.memory, &r.proxyCPU, &r.apiMemory, &r.apiCPU)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	if len(all) < 2 {
		t.Fatalf("%d seconds were shown instead of 3:\n%s", len(all), out)
	}
	return all
}

// The demo stays up, its kubectl commands work, and Ctrl-C ends everything.
func TestDemoIsInterrupted(t *testing.T) {
	kubectl := cluster.KubectlT(t)
	cmd, dir := startable(t, "--for", "1s")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, dir)
}
