package chart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// applicationVariable makes the tests' binary an application of a pod.
const applicationVariable = "CHART_APPLICATION"

// application is a client with in-cluster configuration. It prints the namespace's pods and their
// events.
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
	events, err := client.CoreV1().Pods(string(ns)).Watch(context.Background(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for e := range events.ResultChan() {
		fmt.Println(e.Type, e.Object.(*corev1.Pod).Name)
	}
	return nil
}

// The sidecar of the example is the apiserver of an application that knows only its in-cluster
// configuration. The service account has rights in its namespace only.
func TestInCluster(t *testing.T) {
	for name, pod := range map[string]func(*podRun){"chart": fromChart, "YAML": fromYAML} {
		t.Run(name, func(t *testing.T) {
			r := newPodRun(t, pod)
			r.createPod("first")
			own, err := os.Executable()
			must(t, err)
			app := r.container(r.spec.Containers[0], own)
			app.Env = append(app.Env, applicationVariable+"=yes")
			r.reads(app, "second")
		})
	}
}

// reads starts an application, which lists the pod first and watches the named one. The cache answers
// both.
func (r *podRun) reads(app *cluster.Container, name string) {
	r.Helper()
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
