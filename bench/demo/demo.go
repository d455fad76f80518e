package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// gentle is the rate of updates, per second, while the demo stays up for kubectl. It shows figures
// once in seldom.
const (
	gentle = 1
	seldom = time.Minute
)

// demo has the processes and their clients. Fields are filled in the order of show.
type demo struct {
	options
	dir string // for all files; removed at the end

	api    *cluster.APIServer
	direct *kubernetes.Clientset // of the apiserver
	pods   []*corev1.Pod
	proxy  *cluster.Proxy
	meter  *meter
	crowd  *crowd
}

// run shows the demo and cleans up, even after an error. An interrupt is not an error.
func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "watchproxy-demo-")
	if err != nil {
		return err
	}
	d := &demo{options: o, dir: dir}
	err = d.show(ctx)
	if ctx.Err() != nil {
		err = nil // the interrupt caused the error
	}
	return errors.Join(err, d.close())
}

// say adds a line.
func say(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

func (d *demo) show(ctx context.Context) (err error) {
	if err := d.startServers(ctx); err != nil {
		return err
	}
	say("\nfirst without watchproxy: starting %d informers directly at kube-apiserver", d.informers)
	without, err := d.measure(ctx, d.api.RESTConfig())
	if err != nil {
		return err
	}
	d.crowd.stop()
	say("\nnow through watchproxy: starting %d informers", d.informers)
	config := d.proxy.RESTConfig()
	config.BearerToken = d.api.Token
	with, err := d.measure(ctx, config)
	if err != nil {
		return err
	}
	d.compare(without, with)
	if d.exit {
		return nil
	}
	if err := d.invite(); err != nil {
		return err
	}
	return d.crowd.during(ctx, d.direct, d.pods, gentle, func(ctx context.Context) error { return d.live(ctx, seldom, 0) })
}

// startServers starts the apiserver, creates the pods, and starts the proxy.
func (d *demo) startServers(ctx context.Context) (err error) {
	say("starting kube-apiserver and etcd")
	if d.api, err = cluster.StartAPIServer(ctx, cluster.Options{Dir: filepath.Join(d.dir, "kubeapi")}); err != nil {
		return err
	}
	if d.direct, err = kubernetes.NewForConfig(d.api.RESTConfig()); err != nil {
		return err
	}
	say("creating %d pods", d.options.pods)
	if err := workload.CreateNamespaces(ctx, d.direct); err != nil {
		return err
	}
	d.pods = make([]*corev1.Pod, d.options.pods)
	const atATime = 16
	if err := workload.Parallel(ctx, len(d.pods), atATime, func(ctx context.Context, i int) error {
		d.pods[i] = workload.NewPod(i)
		return workload.CreatePod(ctx, d.direct, d.pods[i])
	}); err != nil {
		return err
	}
	say("starting watchproxy")
	if d.proxy, err = cluster.StartProxy(ctx, cluster.ProxyOptions{
		Kubeconfig: d.api.Kubeconfig, Binary: d.watchproxy, TLS: true, Args: []string{"--authentication=delegated"},
	}); err != nil {
		return err
	}
	d.meter, err = newMeter(ctx, d.direct, d.proxy)
	return err
}

// bill is the cost of informers: of their start, and of the time after it.
type bill struct{ start, running reading }

// measure starts informers, and writes and shows figures for a while.
func (d *demo) measure(ctx context.Context, config *rest.Config) (b bill, err error) {
	d.crowd = newCrowd(config, d.informers)
	first, err := d.meter.read(ctx)
	if err != nil {
		return b, err
	}
	if err := d.crowd.start(ctx); err != nil {
		return b, err
	}
	started, err := d.meter.read(ctx)
	if err != nil {
		return b, err
	}
	err = d.crowd.during(ctx, d.direct, d.pods, d.rate, func(ctx context.Context) error { return d.live(ctx, time.Second, d.each) })
	if err != nil {
		return b, err
	}
	last, err := d.meter.read(ctx)
	if err != nil {
		return b, err
	}
	if err := d.crowd.settle(ctx); err != nil {
		return b, err
	}
	say("every informer has seen every update of its pods: %d handlers called for %d updates", d.crowd.due.Load(), d.crowd.written.Load())
	return bill{started.since(first), last.since(started)}, nil
}

// live shows figures again and again, for a while, or until ctx ends.
func (d *demo) live(ctx context.Context, every, during time.Duration) error {
	say("%s", header)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last, err := d.meter.read(ctx)
	for began := time.Now(); err == nil && (during == 0 || time.Since(began) < during); {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var now reading
		if now, err = d.meter.read(ctx); err == nil {
			_, times := d.crowd.take()
			say("%s", line(time.Since(began), now, now.since(last), times))
			last = now
		}
	}
	return err
}

// compare shows what informers cost without the proxy and with it.
func (d *demo) compare(without, with bill) {
	t := &workload.Table{Left: 1, Rows: [][]string{{"", "DIRECTLY", "THROUGH WATCHPROXY"}}}
	for _, part := range []struct {
		name          string
		without, with reading
	}{
		{fmt.Sprintf("start of %d informers", d.informers), without.start, with.start},
		{fmt.Sprintf("a second with %d updates", d.rate), without.running.perSecond(), with.running.perSecond()},
	} {
		t.Add(part.name)
		for _, row := range []struct {
			name          string
			without, with float64
			unit          string
		}{
			{"kube-apiserver, processor time", 1e3 * part.without.apiCPU, 1e3 * part.with.apiCPU, "ms"},
			{"watchproxy, processor time", 1e3 * part.without.proxyCPU, 1e3 * part.with.proxyCPU, "ms"},
			{"kube-apiserver, bytes sent (uncompressed)", part.without.apiBytes / 1e3, part.with.apiBytes / 1e3, "kB"},
			{"kube-apiserver, requests except writes", part.without.apiRequests, part.with.apiRequests, "  "},
		} {
			t.Add("  "+row.name, fmt.Sprintf("%.0f %s", row.without, row.unit), fmt.Sprintf("%.0f %s", row.with, row.unit))
		}
	}
	say("")
	t.Print(os.Stdout)
}

// invite prints how to point kubectl at the proxy.
func (d *demo) invite() error {
	kubeconfig := filepath.Join(d.dir, "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, d.proxy.URL, d.proxy.CA, clientcmdapi.AuthInfo{Token: d.api.Token}); err != nil {
		return err
	}
	// Without KUBECACHEDIR, kubectl would leave its discovery cache of this server in the home
	// directory.
	say(strings.NewReplacer(
		"ROOT", cluster.Root(),
		"KUBECONFIG_FILE", kubeconfig,
		"CACHE_DIR", filepath.Join(d.dir, "kubectl"),
		"NAMESPACE", d.pods[0].Namespace,
		"POD", d.pods[0].Name,
		"ADMIN", d.proxy.AdminURL,
	).Replace(`
To try it, in another terminal:

  cd ROOT
  export KUBECONFIG=KUBECONFIG_FILE KUBECACHEDIR=CACHE_DIR

  bin/kubectl get pods -n NAMESPACE
  bin/kubectl get pods -n NAMESPACE --watch
  bin/kubectl delete pod -n NAMESPACE POD     # while that runs
  bin/kubectl get --raw '/api/v1/pods?resourceVersion=0' | wc -c     # from the cache
  bin/watchproxy status --admin ADMIN     # or ADMIN/ in a browser, which refreshes it

Ctrl-C ends the demo and leaves nothing running.
`))
	return nil
}

// close ends everything that show has started. Clients end first, so that servers need not wait for
// them.
func (d *demo) close() error {
	say("stopping")
	if d.crowd != nil {
		d.crowd.stop()
	}
	var errs []error
	if d.proxy != nil {
		errs = append(errs, d.proxy.Close())
	}
	if d.api != nil {
		errs = append(errs, d.api.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
