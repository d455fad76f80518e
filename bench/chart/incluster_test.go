package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// applicationVariable makes the tests' binary an application of a pod.
const applicationVariable = "CHART_APPLICATION"

// application is a client with in-cluster configuration. It prints what its informer of the
// namespace's pods shows.
func application() error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ns, err := os.ReadFile(filepath.Join(cluster.AccountPath, "namespace"))
	if err != nil {
		return err
	}
	list, err := client.CoreV1().Pods(string(ns)).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range list.Items {
		fmt.Println("LISTED", p.Name)
	}
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(string(ns))).Core().V1().Pods().Informer()
	show := func(what string, o any) {
		if p, ok := o.(*corev1.Pod); ok {
			fmt.Println(what, p.Name)
		}
	}
	_, err = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { show("ADDED", o) }, DeleteFunc: func(o any) { show("DELETED", o) },
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	pods.Run(make(chan struct{}))
	return nil
}

// pythonApplication and nodeApplication do the same as application.
const (
	pythonApplication = `
from kubernetes import client, config, watch
config.load_incluster_config()
ns = open("` + cluster.AccountPath + `/namespace").read()
v1 = client.CoreV1Api()
found = v1.list_namespaced_pod(ns)
for p in found.items:
    print("LISTED", p.metadata.name, flush=True)
print("ready", flush=True)
for e in watch.Watch().stream(v1.list_namespaced_pod, ns, resource_version=found.metadata.resource_version):
    print(e["type"], e["object"].metadata.name, flush=True)
`
	nodeApplication = `
const k8s = require('@kubernetes/client-node'), fs = require('fs')
const kc = new k8s.KubeConfig()
kc.loadFromCluster()
const ns = fs.readFileSync('` + cluster.AccountPath + `/namespace', 'utf8')
kc.makeApiClient(k8s.CoreV1Api).listNamespacedPod({namespace: ns}).then(list => {
	list.items.forEach(p => console.log('LISTED', p.metadata.name))
	console.log('ready')
	return new k8s.Watch(kc).watch('/api/v1/namespaces/' + ns + '/pods', {resourceVersion: list.metadata.resourceVersion},
		(type, o) => console.log(type, o.metadata.name), err => console.log('END', err))
}).catch(err => { console.error(err); process.exit(1) })
`
)

// The sidecar of the example is the apiserver of an application that knows only its in-cluster
// configuration, in three languages. The service account has rights in its namespace only.
func TestInCluster(t *testing.T) {
	t.Run("chart", func(t *testing.T) { testInCluster(newPodRun(t, fromChart)) })
	t.Run("YAML", func(t *testing.T) { testInCluster(newPodRun(t, fromYAML)) })
}

func testInCluster(r *podRun) {
	t := r.T
	t.Helper()
	if text, _ := r.ask(r.adminURL + "/status"); r.spec.InitContainers[0].Args[0] == "serve" && !strings.Contains(text, `"namespace=`+r.ns+`"`) {
		t.Errorf("the sidecar is ready without a cache of its namespace: %s", text)
	}
	r.createPod("first")
	spec := r.spec.Containers[0]
	apps := map[string]*cluster.Container{"Go": r.newApplication()}
	if python := filepath.Join(cluster.Root(), "bin", "python-client"); exec.CommandContext(t.Context(), python, "-c", "import kubernetes").Run() == nil {
		apps["Python"] = r.container(spec, python)
		apps["Python"].Command = append(apps["Python"].Command, "-c", pythonApplication)
	} else {
		t.Log("NOT CHECKED: Python's client is not installed (make bin/python-client)")
	}
	if modules := filepath.Join(cluster.Root(), "bin", "node-client", "node_modules"); exists(modules) {
		node, err := exec.LookPath("node")
		must(t, err)
		apps["Node"] = r.container(spec, node)
		apps["Node"].Command = append(apps["Node"].Command, "-e", nodeApplication)
		apps["Node"].Env = append(apps["Node"].Env, "NODE_PATH="+modules)
	} else {
		t.Log("NOT CHECKED: Node's client is not installed (make bin/node-client)")
	}
	for name, app := range apps {
		before := r.cached()
		_, err := app.Start(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(app.Kill)
		r.shows(app, "LISTED first")
		r.createPod(strings.ToLower(name))
		r.shows(app, "ADDED "+strings.ToLower(name))
		if got := r.cached() - before; got < 2 {
			t.Errorf("%s: %v answers came from the cache", name, got)
		}
	}
}

// newApplication returns the pod's container, with application as its program.
func (r *podRun) newApplication() *cluster.Container {
	r.Helper()
	own, err := os.Executable()
	must(r.T, err)
	app := r.container(r.spec.Containers[0], own)
	app.Env = append(app.Env, applicationVariable+"=yes")
	return app
}

// startApplication starts application, which ends with the test.
func (r *podRun) startApplication() *cluster.Container {
	r.Helper()
	app := r.newApplication()
	_, err := app.Start(r.Context())
	must(r.T, err)
	r.Cleanup(app.Kill)
	return app
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A running application notices neither a new token, nor that the sidecar is killed and starts
// again, nor that upstream is away.
func TestInClusterOutages(t *testing.T) {
	r := newPodRun(t, fromChart)
	app := r.startApplication()
	published := r.volumes["watchproxy-serviceaccount"]
	ca, err := os.ReadFile(filepath.Join(published, "ca.crt"))
	must(t, err)
	client := func() *cluster.Endpoint {
		t.Helper()
		token, err := os.ReadFile(filepath.Join(published, "token"))
		must(t, err)
		return cluster.EndpointT(t, "sidecar", "https://"+r.listen, string(token), ca)
	}
	first := client()
	pods := "/api/v1/namespaces/" + r.ns + "/pods?resourceVersion=0"
	fromCache := func(whose string, e *cluster.Endpoint) {
		t.Helper()
		cluster.Eventually(t, "an answer from the cache to "+whose, func() bool {
			before := r.cached()
			return e.GetT(t, pods, nil).Status == 200 && r.cached() > before
		})
	}
	fromCache("the pod's token", first)

	r.mountAccount(applicationAccount)
	cluster.Eventually(t, "the new token is published", func() bool { return client().Token != first.Token })
	fromCache("the new token", client())
	fromCache("the replaced token", first)

	r.sidecar.Kill()
	r.createPod("meanwhile")
	r.startSidecar()
	r.shows(app, "ADDED meanwhile")
	fromCache("the CA that was read before the restart", client())

	must(t, r.api.Stop())
	if got := client().GetT(t, pods, nil); got.Status != 200 {
		t.Errorf("while upstream is away, a list from the cache has the status %d", got.Status)
	}
	must(t, r.api.Start(t.Context()))
	r.createPod("afterwards")
	r.shows(app, "ADDED afterwards")
}

// Requests without a token are refused, and upstream judges all tokens but the pod's.
func TestInClusterTokens(t *testing.T) {
	r := newPodRun(t, fromChart)
	ca, err := os.ReadFile(filepath.Join(r.volumes["watchproxy-serviceaccount"], "ca.crt"))
	must(t, err)
	_, err = r.api.Client().CoreV1().ServiceAccounts(r.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	must(t, err)
	other, err := r.api.Client().CoreV1().ServiceAccounts(r.ns).CreateToken(t.Context(), "other", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	for name, test := range map[string]struct {
		token string
		want  int
	}{"no token": {"", 401}, "an invalid token": {"invalid", 401}, "the token of an account without rights": {other.Status.Token, 403}, "an administrator's token": {r.api.Token, 200}} {
		before := r.cached()
		e := cluster.EndpointT(t, "sidecar", "https://"+r.listen, test.token, ca)
		if got := e.GetT(t, "/api/v1/namespaces/"+r.ns+"/pods?resourceVersion=0", nil); got.Status != test.want || r.cached() != before {
			t.Errorf("%s: %d, want %d, and nothing from the cache", name, got.Status, test.want)
		}
	}
}
