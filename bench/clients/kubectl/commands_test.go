package kubectl

import (
	"bufio"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// commands are reads that people type. The cache answers those before the bar.
const commands = `
get pods
get pods -o wide
get pods --no-headers
get pods --show-labels
get pods -o wide --show-labels
get pods -L app
get pods -L app,tier
get pods -l app=web
get pods -l app!=web
get pods -l app=none
get pods -l tier -L tier
get pods --field-selector metadata.name=web-1
get pods --field-selector status.phase=Pending
get pods --field-selector spec.nodeName=nowhere
get pods --sort-by .metadata.name
get pods --sort-by .metadata.creationTimestamp
get pods --sort-by {.spec.containers[0].name}
get pods --chunk-size=1
get pods --chunk-size=2 -o wide
get pods --chunk-size=0
get pods -A
get pods -A -o wide
get pods -A --chunk-size=2
get pods -A -l app=web --show-labels
get pods -A --sort-by .metadata.name
get pods -o name
get pods -o json
get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName
get pods -o jsonpath={.items[*].metadata.name}
get pods --server-print=false
get pods,services
get pods,configmaps,deployments -o wide
get pods,widgets -A
get nodes
get nodes -o wide
get nodes --show-labels
get namespaces
get deployments -o wide
get replicasets
get daemonsets
get statefulsets
get services -o wide
get configmaps
get configmaps --chunk-size=1
get serviceaccounts -A
get roles,rolebindings
get clusterroles
get customresourcedefinitions
get widgets
get widgets -o wide --show-labels
get widgets -A --sort-by .spec.size
get leases -A
get persistentvolumes,persistentvolumeclaims
get horizontalpodautoscalers
get poddisruptionbudgets
get priorityclasses
get endpointslices -A
get ingresses,networkpolicies
get resourcequotas,limitranges
get pods -w
get pods -w -o wide --show-labels
get pods -A -w -l app=web --output-watch-events
get widgets -w
get pods --watch-only --no-headers
get pods --watch-only -o name -l app=web
get widgets -A --watch-only --no-headers
get nonsense
|
get pods --field-selector no.such.field=1
get pod web-1
get pod web-1 web-2 -o wide
get pod missing
get widget small
get events
get storageclasses
get jobs
get cronjobs
get all
get secrets
describe pod web-1
describe pods
describe node nowhere
describe service web
wait pod web-1 --for=jsonpath={.metadata.labels.app}=web
wait pod db-1 --for=delete --timeout=0s
rollout status deployment web --watch=false
rollout history deployment web
top pods
api-resources --no-headers
api-versions
explain pods.spec
auth can-i list pods
events
get pods -o yaml
get pod web-1 -o jsonpath={.metadata.uid}
get widget small -o yaml
get configmap one -o json
describe configmap one
describe widget small
describe pod missing
wait pod web-1 --for=condition=Ready --timeout=0s
auth whoami
explain widget.spec
get --raw /version
get --raw /readyz?verbose
get --raw /nonsense
`

// Commands that read print the same through the proxy and directly. The apiserver gets nothing from
// those that the cache answers.
func TestCommands(t *testing.T) {
	audit := &cluster.AuditLog{Path: filepath.Join(t.TempDir(), "audit.log")}
	w := &clients.World{API: cluster.APIServerT(t, cluster.Options{AuditLog: audit.Path}), Dir: t.TempDir()}
	// On a busy machine the apiserver may be faster than a proof, and a feed may take long to start.
	const patient = "cache: {syncTimeout: 1m}\n"
	w.Proxy = cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, TLS: true, Settings: patient})
	w.Admin, w.Dynamic = w.API.Client(), w.API.Dynamic()
	fronts := w.Fronts(t)
	ns := w.Namespace(t, "commands")
	w.DefineWidgets(t)
	fronts[0].Must(t, clients.Kubectl("-n", ns, "create", "-f", "-").Reading(inhabitants))
	for _, name := range []string{"small", "large"} {
		if _, err := w.Dynamic.Resource(clients.Widgets).Namespace(ns).Create(t.Context(), clients.NewWidget(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cached, forwarded, _ := strings.Cut(commands, "|\n")
	for i, part := range []string{cached, forwarded} {
		// All commands but watches run at the apiserver before, several at a time. Later, the audit log
		// must have only the proxy's requests.
		all := strings.Split(strings.TrimSpace(part), "\n")
		direct := make([]string, len(all))
		_ = workload.Parallel(t.Context(), len(all), 4, func(_ context.Context, i int) error {
			if !strings.Contains(all[i], " -w") && !strings.Contains(all[i], " --watch-only") {
				direct[i] = stable(fronts[0].Run(t, clients.Kubectl(append([]string{"-n", ns}, strings.Fields(all[i])...)...)))
			}
			return nil
		})
		for at, line := range all {
			command := strings.Fields(line)
			t.Run(strings.Join(command, " "), func(t *testing.T) {
				proxied := false
				do := clients.Kubectl(append([]string{"-n", ns}, command...)...)
				run := func(f clients.Front) string { return stable(f.Run(t, do)) }
				switch watch := slices.Index(command, "-w"); {
				case slices.Contains(command, "--watch-only"):
					run = func(f clients.Front) string { return firstChange(t, w, ns, f, do) }
				case watch > 0:
					// The state has as many lines as the list.
					list := slices.DeleteFunc(slices.Clone(do.Args), func(arg string) bool { return arg == "-w" || arg == "--output-watch-events" })
					lines := strings.Count(fronts[0].Must(t, clients.Kubectl(list...)), "\n")
					run = func(f clients.Front) string {
						return state(t, f, do, lines, func() {
							if !proxied { // this watch must not count as the proxy's
								cluster.Eventually(t, "the watch arrives", func() bool { return slices.ContainsFunc(audit.PeekT(t), isWatch) })
							}
						})
					}
				}
				audit.SkipT(t)
				want := direct[at]
				if want == "" {
					want = run(fronts[0])
				}
				audit.SkipT(t)
				proxied = true
				began := time.Now() // the end of a killed watch may be audited later
				if got := run(fronts[1]); got != want {
					t.Errorf("apiserver\n%s\nproxy\n%s", want, got)
				}
				if strings.HasPrefix(want, "--- standard error\n--- exit code") {
					t.Error("it says nothing")
				}
				if i > 0 {
					return
				}
				for _, r := range audit.NextT(t) {
					if r.ObjectRef.Resource != "" && strings.HasPrefix(r.UserAgent, "kubectl/") && r.RequestReceivedTimestamp.After(began) {
						t.Errorf("the apiserver gets %s %s", r.Verb, r.RequestURI)
					}
				}
				if t.Failed() {
					for line := range strings.Lines(string(w.Proxy.MetricsT(t))) {
						if strings.HasPrefix(line, "watchproxy_forwarded_total") {
							t.Log(line)
						}
					}
				}
			})
		}
	}
}

// state returns the first lines of a watch, sorted. It calls read when it has them, and then kills
// kubectl.
func state(t *testing.T, f clients.Front, i clients.Invocation, lines int, read func()) string {
	t.Helper()
	r := f.Start(t, i)
	defer r.Kill()
	all := make([]string, lines)
	for i := range all {
		all[i] = r.Line(t) + "\n"
	}
	read()
	slices.Sort(all)
	return stable(clients.Outcome{Stdout: strings.Join(all, "")})
}

// isWatch reports whether a record is of kubectl's watch.
func isWatch(r cluster.AuditRecord) bool {
	return r.Verb == "watch" && strings.HasPrefix(r.UserAgent, "kubectl/")
}

// firstChange returns the first line of a watch without a state, and then kills kubectl. Objects
// change until the line comes.
func firstChange(t *testing.T, w *clients.World, ns string, f clients.Front, i clients.Invocation) string {
	t.Helper()
	r := f.Start(t, i)
	line := make(chan string, 1)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer r.Kill()
	reading.Go(func() {
		text, _ := bufio.NewReader(r.Stdout).ReadString('\n')
		line <- text
	})
	const often = 200 * time.Millisecond
	for n := range int(cluster.Limit / often) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"changed":"%d"}}}`, n)
		_, err := w.Admin.CoreV1().Pods(ns).Patch(t.Context(), "web-1", types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			_, err = w.Dynamic.Resource(clients.Widgets).Namespace(ns).Patch(t.Context(), "small", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		cluster.MustT(t, err)
		select {
		case text := <-line:
			return stable(clients.Outcome{Stdout: text})
		case <-time.After(often):
		}
	}
	t.Fatal("no change is shown")
	return ""
}

// inhabitants are what the commands read.
const inhabitants = `
{apiVersion: v1, kind: Pod, metadata: {name: web-1, labels: {app: web, tier: front}}, spec: {containers: [{name: b, image: web}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-2, labels: {app: web}}, spec: {containers: [{name: a, image: web}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-1, labels: {app: db, tier: back}}, spec: {nodeName: nowhere, containers: [{name: c, image: db}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: nowhere, labels: {zone: a}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {a: b}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: two}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {app: other}}, template: {metadata: {labels: {app: other}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent}, spec: {selector: {matchLabels: {app: other}}, template: {metadata: {labels: {app: other}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: once}, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly}, spec: {schedule: 0 3 * * *, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader}, rules: []}
`
