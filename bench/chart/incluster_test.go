package chart

import (
	"context"
	"fmt"
	"os"
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

// The sidecar of the example is the apiserver of an application that knows only its in-cluster
// configuration. The service account has rights in its namespace only.
func TestInCluster(t *testing.T) {
	for name, pod := range map[string]func(*podRun){"chart": fromChart, "YAML": fromYAML} {
		t.Run(name, func(t *testing.T) {
			r := newPodRun(t, pod)
			r.createPod("first")
			r.reads(r.newApplication(), "second")
			if name == "chart" {
				r.judges()
			}
		})
	}
}

// reads starts an application, which lists the pod first and watches the named one. The cache answers
// both.
func (r *podRun) reads(app *cluster.Container, name string) {
	r.Helper()
	if text, _ := r.ask(r.adminURL + "/status"); r.spec.InitContainers[0].Args[0] == "serve" && !strings.Contains(text, `"namespace=`+r.ns+`"`) {
		r.Errorf("the sidecar is ready without a cache of its namespace: %s", text)
	}
	before := r.cached()
	_, err := app.Start(r.Context())
	must(r.T, err)
	r.Cleanup(app.Kill)
	r.shows(app, "LISTED first")
	r.createPod(name)
	r.shows(app, "ADDED "+name)
	if got := r.cached() - before; got < 2 {
		r.Errorf("%s: %v answers came from the cache", name, got)
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

// judges checks that requests without a token are refused, and that upstream judges all tokens but the
// pod's.
func (r *podRun) judges() {
	r.Helper()
	ca, err := os.ReadFile(filepath.Join(r.volumes["watchproxy-serviceaccount"], "ca.crt"))
	must(r.T, err)
	accounts := r.api.Client().CoreV1().ServiceAccounts(r.ns)
	_, err = accounts.Create(r.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	must(r.T, err)
	other, err := accounts.CreateToken(r.Context(), "other", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(r.T, err)
	before := r.cached()
	for token, want := range map[string]int{"": 401, "invalid": 401, other.Status.Token: 403, r.api.Token: 200} {
		e := cluster.EndpointT(r, "sidecar", "https://"+r.listen, token, ca)
		if got := e.GetT(r, "/api/v1/namespaces/"+r.ns+"/pods?resourceVersion=0", nil); got.Status != want || r.cached() != before {
			r.Errorf("with the token %.20q: %d, want %d, and nothing from the cache", token, got.Status, want)
		}
	}
}

// A sidecar that is killed during an outage of the apiserver does not start before the end of the
// outage. Then its application's watch goes on, and the application can list during the next outage.
func TestInClusterKill(t *testing.T) {
	var relay *cluster.Relay
	r := newPodRun(t, func(r *podRun) {
		r.createPod("first")
		api := r.upstream
		relay = cluster.RelayT(t, func() string { return api })
		r.upstream = relay.Address()
		r.embed(combinations(t)["values-sidecar"])
	})
	app := r.newApplication()
	r.reads(app, "second")
	relay.Cut()
	r.sidecar.Kill()
	if _, err := r.sidecar.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("without the apiserver, the sidecar starts: %v", err)
	}
	relay.Mend()
	r.startSidecar()
	r.createPod("third")
	r.shows(app, "ADDED third")
	relay.Cut()
	mounted := r.volumes["watchproxy-serviceaccount"]
	ca, err := os.ReadFile(filepath.Join(mounted, "ca.crt"))
	must(t, err)
	token, err := os.ReadFile(filepath.Join(mounted, "token"))
	must(t, err)
	list := cluster.EndpointT(t, "sidecar", "https://"+r.listen, string(token), ca).GetT(t, "/api/v1/namespaces/"+r.ns+"/pods?resourceVersion=0", nil)
	if list.Status != 200 || !strings.Contains(string(list.Body), `"name":"first"`) {
		t.Errorf("without the apiserver, the application's list is %d %.300s", list.Status, list.Body)
	}
}
