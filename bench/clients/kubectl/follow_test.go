package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestKubectlLogs(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-logs")
	fronts := w.Fronts(t)
	for _, args := range [][]string{
		{"logs", k.pod},
		{"logs", k.pod, "-c", "main", "--tail=3", "--timestamps"},
		{"logs", k.pod, "--previous", "--since=1h", "--limit-bytes=100"},
		{"logs", k.pod, "-c", "missing"},
		{"logs", "missing"},
		{"logs", "-l", "app=test", "--prefix"},
	} {
		o := same(t, fronts, clients.Kubectl(append([]string{"-n", k.namespace}, args...)...))
		if o.Code == 0 && !strings.Contains(o.Stdout, "first line of main") {
			t.Errorf("%v: %q", args, o.Stdout)
		}
	}
}

// Each line arrives before the next one is written. If kubectl is killed, the kubelet's stream
// ends. If the container ends, kubectl ends, too.
func TestKubectlLogsFollow(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-logs-follow")
	for _, f := range w.Fronts(t) {
		t.Run(f.Name, func(t *testing.T) {
			begin := func() (*clients.Running, *follow) {
				r := f.Start(t, clients.Kubectl("-n", k.namespace, "logs", "-f", k.pod))
				log := cluster.Receive(t, "the request for logs", k.follows)
				for i := range 5 {
					line := fmt.Sprintf("line %d", i)
					log.lines <- line + "\n"
					if got := r.Line(t); got != line {
						t.Errorf("got %q instead of %q", got, line)
					}
				}
				return r, log
			}
			killed, log := begin()
			killed.Kill()
			cluster.Receive(t, "the kubelet's request ends with kubectl", log.gone)

			over, log := begin()
			log.lines <- "last words without a newline"
			close(log.lines)
			rest, err := io.ReadAll(over.Stdout)
			if err != nil || string(rest) != "last words without a newline" {
				t.Errorf("got %q, %v", rest, err)
			}
			if code := over.Wait(); code != 0 {
				t.Errorf("exit code %d\n%s", code, over.Stderr)
			}
		})
	}
}

// kubectl get -w shows each change before the next one is made, as a table and as JSON.
func TestKubectlWatches(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "kubectl-watches")
	pods := w.Admin.CoreV1().Pods(ns)
	w.CreatePod(t, ns, cluster.NewPod("a"))
	relabel := func(value string) {
		t.Helper()
		if _, err := pods.Patch(t.Context(), "a", types.MergePatchType, clients.LabelPatch("change", value), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range w.Fronts(t) {
		t.Run(f.Name+"/table", func(t *testing.T) {
			relabel("none")
			r := f.Start(t, clients.Kubectl("-n", ns, "get", "pods", "-w", "-L", "change", "--output-watch-events"))
			expect := func(words ...string) {
				t.Helper()
				line := strings.Fields(r.Line(t))
				if len(line) < 2 || line[0] != words[0] || line[len(line)-1] != words[1] {
					t.Fatalf("got %q, want %q", line, words)
				}
			}
			expect("EVENT", "CHANGE")
			expect("ADDED", "none")
			for i := range 5 {
				change := fmt.Sprintf("%s-%d", f.Name, i)
				relabel(change)
				expect("MODIFIED", change)
			}
			w.CreatePod(t, ns, cluster.NewPod("b"))
			r.Line(t)
			if err := pods.Delete(t.Context(), "b", *metav1.NewDeleteOptions(0)); err != nil {
				t.Fatal(err)
			}
			for !strings.HasPrefix(r.Line(t), "DELETED") { // it is first modified, because it is terminating
			}
			r.Kill()
		})
		t.Run(f.Name+"/json", func(t *testing.T) {
			relabel("none")
			r := f.Start(t, clients.Kubectl("-n", ns, "get", "pods", "-w", "-o", "json", "--output-watch-events"))
			d := json.NewDecoder(r.Stdout)
			expect := func(kind, change string) {
				t.Helper()
				var e struct {
					Type   string
					Object struct{ Metadata metav1.ObjectMeta }
				}
				if err := d.Decode(&e); err != nil {
					t.Fatal(err)
				}
				if e.Type != kind || e.Object.Metadata.Labels["change"] != change {
					t.Fatalf("got %+v, want %s with change=%s", e, kind, change)
				}
			}
			expect("ADDED", "none")
			for i := range 5 {
				change := fmt.Sprintf("%s-%d", f.Name, i)
				relabel(change)
				expect("MODIFIED", change)
			}
			r.Kill()
		})
	}
}
