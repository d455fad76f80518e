package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// world is the cluster that all roads lead to.
type world struct {
	size
	*options
	dir       string // of all files; removed at the end
	api       *cluster.APIServer
	authority *cluster.Authority
	admin     *kubernetes.Clientset // of the apiserver, with protobuf
	dynamic   *dynamic.DynamicClient
	kwok      *exec.Cmd
	built     time.Duration
	json      int64                  // bytes of JSON of everything that the crowd reads
	now       atomic.Pointer[string] // the resourceVersion of a recent write
}

// atATime limits the writes in flight while the cluster is built.
const atATime = 48

func (w *world) build(ctx context.Context) (err error) {
	began := time.Now()
	if w.dir, err = os.MkdirTemp("", "watchproxy-scale-"); err != nil {
		return err
	}
	w.api, err = cluster.StartAPIServer(ctx, cluster.Options{
		Dir: filepath.Join(w.dir, "kubeapi"), Flags: []string{"--service-cluster-ip-range=10.0.0.0/16"},
	})
	if err != nil {
		return err
	}
	if w.admin, err = kubernetes.NewForConfig(protobuf(w.api.RESTConfig())); err != nil {
		return err
	}
	if w.dynamic, err = dynamic.NewForConfig(w.api.RESTConfig()); err != nil {
		return err
	}
	if w.authority, err = w.api.Authority(); err != nil {
		return err
	}
	if err := w.fill(ctx); err != nil {
		return err
	}
	if err := w.startKwok(ctx); err != nil {
		return err
	}
	w.built = time.Since(began).Round(time.Second)
	w.json, err = w.sizeInJSON(ctx)
	say("built in %v: %d MB of JSON", w.built, w.json/1e6)
	return err
}

// protobuf makes clients of built-in resources use protobuf, as Kubernetes' own components do.
func protobuf(config *rest.Config) *rest.Config {
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// fill creates the objects.
func (w *world) fill(ctx context.Context) error {
	core, create := w.admin.CoreV1(), metav1.CreateOptions{}
	_, err := w.dynamic.Resource(definitions).Create(ctx, newDefinition(), create)
	if err != nil {
		return fmt.Errorf("cannot create the custom resource: %w", err)
	}
	_, err = core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leases}}, create)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot create namespace %s: %w", leases, err)
	}
	for _, part := range []struct {
		what string
		n    int
		do   func(ctx context.Context, i int) error
	}{
		{"nodes", w.nodes, func(ctx context.Context, i int) error {
			node := newNode(i)
			_, err := core.Nodes().Create(ctx, node, create)
			if err == nil {
				_, err = w.admin.CoordinationV1().Leases(leases).Create(ctx, newLease(node.Name), create)
			}
			return err
		}},
		{"namespaces with a service", w.services, func(ctx context.Context, i int) error {
			_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}, create)
			if err == nil {
				_, err = core.Services(namespace(i)).Create(ctx, newService(i), create)
			}
			if err == nil {
				_, err = w.admin.DiscoveryV1().EndpointSlices(namespace(i)).Create(ctx, w.newSlice(i), create)
			}
			return err
		}},
		{"custom resources", w.custom, func(ctx context.Context, i int) error {
			database := w.newDatabase(i)
			_, err := w.dynamic.Resource(databases).Namespace(database.GetNamespace()).Create(ctx, database, create)
			return err
		}},
		{"pods", w.nodes * w.podsPerNode, func(ctx context.Context, i int) error {
			return workload.CreatePod(ctx, w.admin, w.newPod(i))
		}},
	} {
		say("creating %d %s", part.n, part.what)
		if err := workload.Parallel(ctx, part.n, atATime, part.do); err != nil {
			return fmt.Errorf("cannot create %s: %w", part.what, err)
		}
	}
	return nil
}

//go:embed stages.yaml
var stages []byte

// startKwok returns when kwok starts pods and has looked at all others. Kwok dies with the thread
// that starts it, and so with this process.
func (w *world) startKwok(ctx context.Context) error {
	config := filepath.Join(w.dir, "stages.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(w.dir, "kwok.log"))
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // kwok has its own descriptor
	w.kwok = exec.Command(w.options.kwok, "--kubeconfig", w.api.Kubeconfig, "--config", config, "--manage-all-nodes",
		"--node-lease-duration-seconds", "0", "--cidr", "10.128.0.0/9")
	w.kwok.Env = append(os.Environ(), "HOME="+w.dir, "GOMAXPROCS=1")
	w.kwok.Stdout, w.kwok.Stderr = log, log
	w.kwok.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	if err := w.kwok.Start(); err != nil {
		w.kwok = nil
		return fmt.Errorf("cannot start kwok: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 15*time.Minute, fmt.Errorf("kwok does not start pods, see %s", log.Name()))
	defer cancel()
	pod := w.newChurnPod(-1, rand.New(rand.NewPCG(w.seed, 0)))
	pods := w.admin.CoreV1().Pods(pod.Namespace)
	pod, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	w.now.Store(&pod.ResourceVersion)
	for pod.Status.Phase != corev1.PodRunning {
		if err := w.rest(ctx); err != nil {
			return err
		}
		if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
}

// rest waits until kwok has looked at all pods, which it also does when the apiserver has restarted.
func (w *world) rest(ctx context.Context) error {
	say("waiting for kwok")
	for before, n := time.Duration(0), 0; n < 200; n++ {
		cluster.Pause(ctx, 5*time.Second)
		cpu, err := cluster.CPUOf(w.kwok.Process.Pid)
		if err = cmp.Or(err, context.Cause(ctx)); err != nil || cpu-before < time.Second/2 {
			return err
		}
		before = cpu
	}
	return errors.New("kwok does not come to rest")
}

// sizeInJSON adds up the lists of everything that the crowd reads.
func (w *world) sizeInJSON(ctx context.Context) (total int64, err error) {
	client, err := kubernetes.NewForConfig(w.api.RESTConfig())
	if err != nil {
		return 0, err
	}
	for _, r := range []schema.GroupVersionResource{pods, nodes, services, namespaces, endpointSlices, databases} {
		path := "/apis/" + r.Group
		if r.Group == "" {
			path = "/api"
		}
		list, err := client.RESTClient().Get().AbsPath(path, r.Version, r.Resource).Param("resourceVersion", "0").Stream(ctx)
		if err != nil {
			return 0, fmt.Errorf("size of %s: %w", r.Resource, err)
		}
		n, err := io.Copy(io.Discard, list)
		if err = errors.Join(err, list.Close()); err != nil {
			return 0, fmt.Errorf("size of %s: %w", r.Resource, err)
		}
		total += n
	}
	return total, nil
}

// lives is how many seconds a pod of the churn lives.
const lives = 60

// churning lets pods start and end while do runs, and writes their endpoints. Writes that fail
// while the apiserver restarts are left out.
func (w *world) churning(ctx context.Context, road string, do func(context.Context) error) error {
	return workload.During(ctx, w.churn, atATime, func(ctx context.Context, i int) error {
		random := rand.New(rand.NewPCG(w.seed, uint64(i)))
		if old := i - lives*w.churn; old >= 0 {
			past := w.newChurnPod(old, rand.New(rand.NewPCG(w.seed, uint64(old))))
			_ = w.admin.CoreV1().Pods(past.Namespace).Delete(ctx, road+"-"+past.Name, *metav1.NewDeleteOptions(0))
		}
		pod := w.newChurnPod(i, random)
		pod.Name = road + "-" + pod.Name
		created, err := w.admin.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return nil
		}
		w.now.Store(&created.ResourceVersion)
		patch, err := json.Marshal([]map[string]any{{
			"op": "replace", "path": "/endpoints/0/targetRef", "value": corev1.ObjectReference{Kind: "Pod", Name: pod.Name, UID: created.UID},
		}})
		if err != nil {
			return err
		}
		_, _ = w.admin.DiscoveryV1().EndpointSlices(pod.Namespace).Patch(ctx, "web", types.JSONPatchType, patch, metav1.PatchOptions{})
		return nil
	}, do)
}

// head describes the run.
func (w *world) head(ctx context.Context) string {
	return fmt.Sprintf("%s\nscale %v, seed %d: %d nodes, %d pods, %d namespaces and services with EndpointSlices, %d custom resources,\n"+
		"%d MB of JSON, built in %v; %d pods start and end a second, %d leases are renewed each %v.",
		workload.Where(ctx), w.scale, w.seed, w.nodes, w.nodes*w.podsPerNode, w.services, w.custom, w.json/1e6, w.built, w.churn,
		w.nodes, w.renewal())
}

// close ends the processes and removes their files.
func (w *world) close() error {
	var errs []error
	if w.kwok != nil {
		errs = append(errs, w.kwok.Process.Kill())
		_ = w.kwok.Wait() // killed
	}
	if w.api != nil {
		errs = append(errs, w.api.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
