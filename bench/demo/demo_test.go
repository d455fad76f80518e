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

func TestDemoExits(t *testing.T) {
	cmd, dir := startable(t, "--for", "3s", "--exit")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkNothingLeft(t, dir)
	t.Logf("%s", out)
	if !bytes.Contains(out, []byte("\nevery informer has seen every update")) {
		t.Error("it does not tell that nothing was lost")
	}

	rows := rows(t, string(out))
	if len(rows) < 3 {
		t.Fatalf("%d seconds were shown instead of 3", len(rows))
	}
	for i, r := range rows {
		for what, ok := range map[string]bool{
			"1 watch upstream":                 r.watchesIn == 1,
			"10 watches downstream":            r.watchesOut == 10,
			"events from upstream":             r.eventsIn > 0,
			"more events to informers":         r.eventsOut > r.eventsIn,
			"a watch per informer":             r.requestsOut == 10,
			"few requests upstream":            r.requestsIn >= 1 && r.requestsIn <= 25,
			"a delivery time":                  r.p50 > 0 && r.p50 <= r.p99,
			"0.2 MB of pods":                   r.cached > 0.1 && r.cached < 0.4,
			"the proxy's and apiserver's size": r.proxyMemory > 1 && r.apiMemory > 1,
		} {
			if !ok {
				t.Errorf("second %d does not show %s", i+1, what)
			}
		}
	}
}

// row is a line of figures.
type row struct {
	time                                     string
	watchesIn, watchesOut                    float64
	eventsIn, eventsOut                      float64
	requestsIn, requestsOut                  float64
	p50, p99                                 float64
	cached                                   float64
	proxyMemory, proxyCPU, apiMemory, apiCPU float64
}

var (
	rowStart = regexp.MustCompile(`^ +\d+s `)
	units    = strings.NewReplacer(" ms", "", " MB", "", " %", "", ",", "")
)

func rows(t *testing.T, out string) []row {
	t.Helper()
	var all []row
	for line := range strings.Lines(out) {
		if !rowStart.MatchString(line) {
			continue
		}
		var r row
		_, err := fmt.Sscan(units.Replace(line), &r.time, &r.watchesIn, &r.watchesOut, &r.eventsIn, &r.eventsOut,
			&r.requestsIn, &r.requestsOut, &r.p50, &r.p99, &r.cached,
			&r.proxyMemory, &r.proxyCPU, &r.apiMemory, &r.apiCPU)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
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
