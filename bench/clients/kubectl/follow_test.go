package kubectl

import (
	"fmt"
	"io"
	"strings"
	"testing"

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
