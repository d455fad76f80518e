package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is what users run. The rows of its output that are compared match shows; what stands in
// its parentheses counts, or else all of it.
type program struct {
	name    string
	command []string
	shows   *regexp.Regexp
	enough  int // end the program after as many rows; 0: it ends itself
}

// outcome is what a program has shown and cost.
type outcome struct {
	first, took time.Duration
	bytes       int64
	requests    float64
	rows        []string // sorted
	err         error
}

// limit is how long a program may take.
const limit = 5 * time.Minute

// run runs a program on a road.
func (w *world) run(ctx context.Context, p program, r *road) (o outcome) {
	before, err := w.requests(ctx)
	if err != nil {
		return outcome{err: err}
	}
	sent := r.relay.Sent.Load()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	if cmd.Env, err = w.environment(r); err != nil {
		return outcome{err: err}
	}
	cmd.Dir = w.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return outcome{err: err}
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return outcome{err: err}
	}
	ended := false // by the bench
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	lines.Split(pieces)
	for lines.Scan() {
		for _, match := range p.shows.FindAllStringSubmatch(lines.Text(), -1) {
			if o.rows == nil {
				o.first = time.Since(began)
			}
			o.rows = append(o.rows, match[len(match)-1])
		}
		if p.enough > 0 && len(o.rows) >= p.enough {
			ended = true
			cancel()
			break
		}
	}
	err = cmd.Wait()
	o.took = time.Since(began)
	if len(o.rows) == 0 {
		o.err = fmt.Errorf("%s: it shows nothing: %w: %.2000s", r.name, err, stderr.String())
	}
	if err != nil && !ended {
		o.rows = append(o.rows, err.Error()) // the exit status is compared, too
	}
	slices.Sort(o.rows)
	o.rows = slices.Compact(o.rows)
	o.bytes = r.relay.Sent.Load() - sent
	after, err := w.requests(context.WithoutCancel(ctx))
	o.requests, o.err = after-before, errors.Join(o.err, err)
	return o
}

// pieces splits output at the ends of lines, and at the escape sequences of a terminal.
func pieces(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if end := bytes.IndexAny(data, "\n\x1b"); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// pod matches the names of the workload's pods.
const pod = `[a-z]+-[a-z]+-[0-9a-f]{9}-\d{5}`

const python = `
from kubernetes import client, config
config.load_kube_config()
v1, token = client.CoreV1Api(), None
while True:
    page = v1.list_pod_for_all_namespaces(limit=500, _continue=token)
    for p in page.items:
        print(p.metadata.name, p.metadata.resource_version, p.status.phase, flush=True)
    token = page.metadata._continue
    if not token:
        break
`

const node = `
const k8s = require('@kubernetes/client-node')
const kc = new k8s.KubeConfig()
kc.loadFromDefault()
const api = kc.makeApiClient(k8s.CoreV1Api)
const informer = k8s.makeInformer(kc, '/api/v1/pods', () => api.listPodForAllNamespaces())
informer.on('add', p => console.log(p.metadata.name, p.metadata.resourceVersion, p.status.phase))
informer.on('error', e => { console.error(e); process.exit(1) })
informer.start()
`

// programs returns the programs, in the order of the table. The first runs before there are pods.
func programs(w *world) []program {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	pods := "--pods=" + strconv.Itoa(w.pods)
	chart := filepath.Join(w.root, "charts", "watchproxy")
	versioned := regexp.MustCompile(pod + ` \d+ \w+`)
	all := []program{
		{
			"controller-runtime v0.25.2, its cache suite, without pods",
			[]string{w.bin("cache.test"), "-ginkgo.no-color"},
			regexp.MustCompile(`\[FAIL\] .*|\d+ Passed \| \d+ Failed`), 0,
		},
		{"k9s v0.50.16", []string{
			"script", "-qfec", "stty cols 160 rows 50; exec " + w.bin("k9s") +
				" -A -c pods --readonly --headless --logoless --splashless", "/dev/null",
		}, regexp.MustCompile(`(?:\[[\d;]*m)?(` + pod + `)`), 40},
		{"stern v1.34.0", []string{
			w.bin("stern"), ".", "-n", "cart", "-l", "app.kubernetes.io/name=api", "--no-follow", "--tail=1",
			"--color=never", "--only-log-lines", "--max-log-requests=1000",
		}, regexp.MustCompile(pod + " .*"), 0},
		{"client-node 2", []string{"node", "-e", node}, versioned, w.pods},
		{"python3-kubernetes", []string{filepath.Join(w.root, "bin", "python-client"), "-c", python}, versioned, 0},
		{"Prometheus' kubernetes discovery v0.314.0", []string{self, "prometheus", pods}, regexp.MustCompile(pod + ` \S+ \w+`), w.pods},
		{"k8sattributes processor v1.2.0", []string{self, "otel", pods}, regexp.MustCompile(pod + ` \S+ \S+`), 0},
		{"helm v4.2.4", []string{"bash", "-ec", fmt.Sprintf("%[1]s install demo %[2]s -n cart >/dev/null; %[1]s list -A; %[1]s get manifest demo -n cart; "+
			"%[1]s uninstall demo -n cart >/dev/null", w.bin("helm"), chart)}, regexp.MustCompile(`(?:kind|name): .*`), 0},
	}
	for _, version := range []string{"v1.35.8", "v1.36.5", "v1.37.2"} {
		all = append(all, program{
			"kubectl " + version,
			[]string{w.bin("kubectl-" + version), "get", "pods", "-A"},
			regexp.MustCompile(`^\S+\s+` + pod + `\s+\S+\s+\w+`), 0,
		})
	}
	return all
}

// bin returns the path of a program that make builds.
func (w *world) bin(name string) string { return filepath.Join(w.root, "bin", "programs", name) }
