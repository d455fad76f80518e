package clients

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// world is an apiserver with a proxy in front of it, which most tests share, each in namespaces of its own. Those that
// kill or count have a world of their own.
type world struct {
	api     *cluster.APIServer
	proxy   *cluster.Proxy
	admin   *kubernetes.Clientset // straight to the apiserver
	dynamic *dynamic.DynamicClient
	dir     string // for files of the tests, removed at the end
}

// The tokens of users beside admin.
const (
	bobsToken = "bobs-token" // bob may do nothing but read configmaps in namespace default
	users     = bobsToken + ",bob,bob\n"
)

var (
	shared     *world
	sharedErr  error
	sharedOnce sync.Once
)

// sharedWorld starts the world that tests share, at its first call.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	sharedOnce.Do(func() { shared, sharedErr = newWorld() })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("watchproxy's log so far:\n%s", shared.proxy.Log())
		}
	})
	return shared
}

func closeWorld() error {
	if shared == nil {
		return nil
	}
	return shared.close()
}

// ownWorld starts a world for one test.
func ownWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w, err := newWorld(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log := w.proxy.Log()
		if err := w.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("watchproxy's log:\n%s", log)
		}
	})
	return w
}

// newWorld starts an apiserver and a proxy with further arguments.
func newWorld(args ...string) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	const startLimit = 10 * time.Minute // the proxy is built, too
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if w.dir, err = os.MkdirTemp("", "clients-"); err != nil {
		return w, err
	}
	tokens := filepath.Join(w.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(users), 0o600); err != nil {
		return w, err
	}
	if w.api, err = cluster.StartAPIServer(ctx, cluster.Options{TokenFile: tokens}); err != nil {
		return w, err
	}
	binary, err := cluster.BuildProxy(ctx, true)
	if err != nil {
		return w, err
	}
	w.proxy, err = cluster.StartProxy(ctx, cluster.ProxyOptions{Binary: binary, Kubeconfig: w.api.Kubeconfig, Args: args})
	if err != nil {
		return w, err
	}
	if w.admin, err = kubernetes.NewForConfig(w.api.RESTConfig()); err != nil {
		return w, err
	}
	w.dynamic, err = dynamic.NewForConfig(w.api.RESTConfig())
	return w, err
}

func (w *world) close() (err error) {
	if w.proxy != nil {
		err = w.proxy.Close()
	}
	if w.api != nil {
		err = errors.Join(err, w.api.Close())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// namespace makes a namespace for a test, named as it likes and then some, so that the test can run again. It stays: there
// is no controller that could empty it.
func (w *world) namespace(t *testing.T, name string) string {
	t.Helper()
	const suffix = 6
	return w.namespaceNamed(t, name+"-"+strings.ToLower(rand.Text()[:suffix]))
}

func (w *world) namespaceNamed(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := w.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// pod is a pod that the apiserver accepts.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "test"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

func (w *world) createPod(t *testing.T, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := w.admin.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// labelPatch sets one label of an object.
func labelPatch(name, value string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{name: value}}})
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return patch
}

// freshProxy starts another proxy in front of the apiserver, without any caches yet. It ends with the test.
func (w *world) freshProxy(t *testing.T, args ...string) *cluster.Proxy {
	t.Helper()
	return w.anotherProxy(t, cluster.ProxyOptions{Args: args})
}

// secureProxy is a fresh one that speaks TLS, and so HTTP/2.
func (w *world) secureProxy(t *testing.T, args ...string) *cluster.Proxy {
	t.Helper()
	return w.anotherProxy(t, cluster.ProxyOptions{Args: args, TLS: true})
}

func (w *world) anotherProxy(t *testing.T, opts cluster.ProxyOptions) *cluster.Proxy {
	t.Helper()
	var err error
	if opts.Binary, err = cluster.BuildProxy(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	opts.Kubeconfig = w.api.Kubeconfig
	return cluster.ProxyT(t, opts)
}
