package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// The names of the compared servers.
const (
	kubeAPIServer = "kube-apiserver"
	ours          = "watchproxy"
	theFloor      = "floor"
)

const (
	protobuf  = "application/vnd.kubernetes.protobuf"
	seedLimit = 16 // pods that are created at a time
)

// bench has all running servers.
type bench struct {
	*options
	wanted *regexp.Regexp
	report *report
	log    *os.File

	api           *cluster.APIServer
	admin         *kubernetes.Clientset
	proxies       []*cluster.Proxy
	nginx         *nginx
	direct        *server // kube-apiserver
	secure, plain pair
	forwarder     *server // nginx, in front of the apiserver
	written       int     // updates of pods
	quiet         float64 // use of a processor by the apiserver without readers
	dir           string  // for files; removed at the end
}

// pair has a proxy and nginx, both with TLS or both without.
type pair struct {
	proxy *server
	nginx *server
}

func measure(ctx context.Context, o *options) (r *report, err error) {
	b := &bench{options: o, report: newReport(ctx, o), log: os.Stderr}
	if len(o.growth) > 0 {
		o.pods = o.growth[0]
	}
	b.wanted = regexp.MustCompile(o.only)
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx); err != nil {
		return b.report, err
	}
	switch {
	case len(o.growth) > 0:
		return b.report, b.growth(ctx, o.growth)
	case len(o.herds) > 0:
		return b.report, b.informers(ctx, o.herds)
	case o.ingest:
		return b.report, b.ingest(ctx)
	case o.recent:
		return b.report, b.recent(ctx)
	}
	for _, scenario := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"lists", b.lists},
		{"reads", b.smallReads},
		{"http2", b.http2s},
		{"tables", b.tables},
		{"fan-out", b.fanOuts},
		{"narrow", b.narrow},
		{"idle", b.idle},
		{"sync", b.syncs},
		{"pace", b.paces},
		{"compression", b.compression},
		{"memory", b.memory},
		{"forward", b.forward},
		{"tiers", b.tiers},
		{"views", b.views},
	} {
		if !b.wanted.MatchString(scenario.name) {
			continue
		}
		b.say("measuring: %s", scenario.name)
		if err := scenario.measure(ctx); err != nil {
			return b.report, fmt.Errorf("%s: %w", scenario.name, err)
		}
	}
	return b.report, nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, format+"\n", args...)
}

func (b *bench) add(r row) {
	b.report.Rows = append(b.report.Rows, r)
	b.say("  %s", r)
}

// start starts the servers and fills them.
func (b *bench) start(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "bench-load-"); err != nil {
		return err
	}
	b.say("starting kube-apiserver and etcd")
	if b.api, err = cluster.StartAPIServer(ctx, cluster.Options{}); err != nil {
		return err
	}
	if b.admin, err = kubernetes.NewForConfig(b.api.RESTConfig()); err != nil {
		return err
	}
	if b.direct, err = newServer(kubeAPIServer, b.api.URL, b.api.CA, b.api.Token, b.api.CPU, b.api.PID()); err != nil {
		return err
	}
	if err := workload.CreateNamespaces(ctx, b.admin); err != nil {
		return err
	}
	wanted := b.pods
	b.pods = 0
	if err := b.grow(ctx, wanted); err != nil {
		return err
	}
	b.say("starting watchproxy")
	if b.secure.proxy, err = b.startProxy(ctx, b.api.Kubeconfig, true); err != nil {
		return err
	}
	if b.plain.proxy, err = b.startProxy(ctx, b.api.Kubeconfig, false); err != nil {
		return err
	}
	if len(b.options.growth) > 0 || len(b.herds) > 0 || b.options.ingest || b.options.recent {
		return nil // only the scenarios need nginx
	}
	if b.nginx, err = startNginx(ctx, b.direct.url.Host); err != nil {
		return err
	}
	pid := b.nginx.cmd.Process.Pid
	if b.secure.nginx, err = newServer(theFloor, b.nginx.secure, b.nginx.ca, "", b.nginx.cpu, pid); err != nil {
		return err
	}
	if b.forwarder, err = newServer(theFloor, b.nginx.forwarder, b.nginx.ca, b.api.Token, b.nginx.cpu, pid); err != nil {
		return err
	}
	b.plain.nginx, err = newServer(theFloor, b.nginx.plain, nil, "", b.nginx.cpu, pid)
	return err
}

// startProxy starts a proxy in front of the server of a kubeconfig, either with TLS, authentication
// and authorization or without all three.
func (b *bench) startProxy(ctx context.Context, kubeconfig string, secure bool) (*server, error) {
	config, err := b.config()
	if err != nil {
		return nil, err
	}
	options := cluster.ProxyOptions{Kubeconfig: kubeconfig, Binary: b.watchproxy, TLS: secure, Args: []string{"--config", config}}
	token := ""
	if secure {
		options.Args = append(options.Args, "--authentication=delegated")
		token = b.api.Token
	}
	p, err := cluster.StartProxy(ctx, options)
	if err != nil {
		return nil, err
	}
	b.proxies = append(b.proxies, p)
	return newServer(ours, p.URL, p.CA, token, p.CPU, p.PID())
}

// config writes the proxies' configuration. The first request for a collection waits until the
// collection is cached, even a large one.
func (b *bench) config() (file string, err error) {
	file = filepath.Join(b.dir, "config.yaml")
	text := "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\nlimits: {maxWatchesPerIdentity: 200000}\ncache:\n  syncTimeout: 2m\n"
	if b.wanted.MatchString("views") {
		text = strings.Replace(text, "cache:\n", viewConfig+"cache:\n", 1)
	}
	if b.noLedger {
		text += "  consistentReads: {ledger: false}\n"
	}
	return file, os.WriteFile(file, []byte(text), 0o600)
}

func (b *bench) close() (err error) {
	for _, p := range b.proxies {
		err = errors.Join(err, p.Close())
	}
	if b.nginx != nil {
		b.nginx.close()
	}
	if b.api != nil {
		err = errors.Join(err, b.api.Close())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// adminOf returns a proxy's admin URL.
func (b *bench) adminOf(s *server) string { return b.proxyAt(s).AdminURL }

func (b *bench) proxyAt(s *server) *cluster.Proxy {
	for _, p := range b.proxies {
		if p.PID() == s.pid {
			return p
		}
	}
	panic("BUG: not a proxy: " + s.name)
}

// resourceVersion returns the resourceVersion of the list of all pods. It must be the same at the
// proxy and the apiserver.
func (b *bench) resourceVersion(ctx context.Context) (string, error) {
	pods, err := b.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("cannot ask for the resourceVersion: %w", err)
	}
	return pods.ResourceVersion, nil
}

// lists measures lists of all pods.
func (b *bench) lists(ctx context.Context) error {
	const path = "/api/v1/pods?resourceVersion=0"
	for _, form := range []struct {
		name, file, accept string
		gzip               bool
		clients            []int
		target             target
	}{
		{"JSON", "pods.json", "", false, []int{1, 4, 16}, target{OfFloor: 1.3, LessThanAPIServer: 18}},
		{"protobuf", "pods.pb", protobuf, false, []int{4}, target{OfFloor: 1.3}},
		{"gzip", "pods.json", "", true, []int{4}, target{OfFloor: 2, LessThanAPIServer: 150}},
	} {
		r := request{path: path, accept: form.accept, gzip: form.gzip}
		if err := b.publish(ctx, form.file, r); err != nil {
			return err
		}
		file := request{path: "/" + form.file, accept: "*/*", gzip: form.gzip}
		for _, clients := range form.clients {
			err := b.compare(ctx, row{Scenario: "list, " + form.name + ", TLS", Clients: clients, Target: form.target},
				ask{b.direct, r}, ask{b.secure.proxy, r}, ask{b.secure.nginx, file})
			if err != nil {
				return err
			}
		}
		err := b.compare(ctx, row{Scenario: "list, " + form.name + ", plain", Clients: 4, Target: target{OfFloor: form.target.OfFloor}},
			ask{b.plain.proxy, r}, ask{b.plain.nginx, file})
		if err != nil {
			return err
		}
	}
	return nil
}

// publish saves the proxy's response as a file for nginx.
func (b *bench) publish(ctx context.Context, file string, r request) error {
	body, err := b.secure.proxy.get(ctx, r)
	if err != nil {
		return err
	}
	if r.gzip {
		file += ".gz"
	}
	return b.nginx.serve(file, body)
}

// smallReads measures reads of a part of the pods.
func (b *bench) smallReads(ctx context.Context) error {
	pod := workload.NewPod(0)
	namespace := "/api/v1/namespaces/" + pod.Namespace + "/pods"
	for _, read := range []struct {
		name, path string
		target     target
	}{
		{"read of one namespace", namespace + "?resourceVersion=0", target{OfFloor: 1.3}},
		{"read of one page of 500", "/api/v1/pods?limit=500", target{}},
		{"read by selector, 1 %", "/api/v1/pods?resourceVersion=0&labelSelector=" + url.QueryEscape("app.kubernetes.io/name=api,app.kubernetes.io/part-of in (ads,mail)"), target{LessThanAPIServer: 20}},
		{"read by selector, 1 %, a new one each time", "/api/v1/pods?resourceVersion=0&labelSelector=" + url.QueryEscape("app.kubernetes.io/name=api,app.kubernetes.io/part-of in (ads,mail),pod-template-hash!=NUMBER"), target{}},
		{"read of one object", namespace + "/" + pod.Name + "?resourceVersion=0", target{}},
	} {
		r := request{path: read.path}
		if err := b.publish(ctx, "read.json", r); err != nil {
			return err
		}
		err := b.compare(ctx, row{Scenario: read.name, Clients: 4, Target: read.target},
			ask{b.direct, r}, ask{b.secure.proxy, r}, ask{b.secure.nginx, request{path: "/read.json", accept: "*/*"}})
		if err != nil {
			return err
		}
	}
	return nil
}

// ask is a request for a server. At nginx it is for the saved response.
type ask struct {
	*server
	request
}

// compare measures requests at their servers.
func (b *bench) compare(ctx context.Context, r row, asks ...ask) error {
	r.Unit, r.Servers = "request", map[string]spent{}
	// The servers take turns, because the machine's speed changes from second to second.
	const rounds = 3
	for range rounds {
		for _, s := range asks {
			got, err := b.measureReads(ctx, s.server, s.request, r.Clients)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Scenario, err)
			}
			r.Servers[s.name] = r.Servers[s.name].and(got)
		}
	}
	b.add(r)
	return nil
}
