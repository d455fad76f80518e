package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const table = "application/json;as=Table;v=v1;g=meta.k8s.io"

// tables compares the Tables that kubectl get asks for.
func (b *bench) tables(ctx context.Context) error {
	pod := workload.NewPod(0)
	namespace := "/api/v1/namespaces/" + pod.Namespace + "/pods"
	first := "/api/v1/pods?limit=500"
	pages, err := b.continued(ctx, first)
	if err != nil {
		return err
	}
	for _, read := range []struct {
		name    string
		clients int
		request
		target target
	}{
		{"Table, most recent page of 500", 4, request{path: first, accept: table, gzip: true}, target{LessThanAPIServer: 18.4}},
		{"Table, most recent page of 500", 1, request{path: first, accept: table, gzip: true}, target{}},
		{"Table, most recent page of 500, not compressed", 4, request{path: first, accept: table}, target{}},
		{"Table, all pages of 500 in turn", 4, request{path: first, pages: pages, accept: table, gzip: true}, target{LessThanAPIServer: 15}},
		{"Table, one namespace", 4, request{path: namespace, accept: table, gzip: true}, target{}},
		{"Table, by label, 1 %", 4, request{path: "/api/v1/pods?labelSelector=" + url.QueryEscape("app.kubernetes.io/name=api,app.kubernetes.io/part-of in (ads,mail)"), accept: table, gzip: true}, target{}},
		{"Table of one object", 4, request{path: namespace + "/" + pod.Name + "?resourceVersion=0", accept: table}, target{}},
	} {
		err := b.compare(ctx, row{Scenario: read.name + ", HTTP/2", Clients: read.clients, Target: read.target},
			ask{b.direct.over2(1), read.request}, ask{b.secure.proxy.over2(1), read.request})
		if err != nil {
			return err
		}
	}
	return b.kubectl(ctx)
}

// kubectl measures how long people wait for kubectl get of all pods, in pages and as one response.
// Most of that time passes in kubectl itself: it decodes and prints, and after ten requests it sends
// only five a second.
func (b *bench) kubectl(ctx context.Context) error {
	kubectl, err := cluster.Kubectl()
	if err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "watchproxy-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home) //nolint:errcheck // a temporary directory
	behind := filepath.Join(home, "kubeconfig")
	if err := b.writeKubeconfig(behind, b.secure.proxy); err != nil {
		return err
	}
	const rounds = 11
	for _, flags := range [][]string{nil, {"--chunk-size=0"}} {
		command := append([]string{"get", "pods", "-A"}, flags...)
		times := map[string][]float64{}
		for range rounds {
			for _, s := range []struct{ name, config string }{{b.direct.name, b.api.Kubeconfig}, {b.secure.proxy.name, behind}} {
				cmd := exec.CommandContext(ctx, kubectl, append(command, "--kubeconfig", s.config)...)
				cmd.Env = []string{"HOME=" + home}
				began := time.Now()
				if out, err := cmd.Output(); err != nil || bytes.Count(out, []byte("\n")) < b.pods {
					return fmt.Errorf("%s: kubectl shows %d bytes: %w", s.name, len(out), err)
				}
				times[s.name] = append(times[s.name], time.Since(began).Seconds())
			}
		}
		r := row{
			Scenario: fmt.Sprintf("kubectl %s, median of %d", strings.Join(command, " "), rounds), Clients: 1, Unit: "s",
			Value: map[string]float64{}, Target: target{LessThanAPIServer: 1},
		}
		for name, took := range times {
			slices.Sort(took)
			r.Value[name] = took[rounds/2]
		}
		b.add(r)
	}
	return nil
}

// writeKubeconfig writes a kubeconfig for a proxy with TLS.
func (b *bench) writeKubeconfig(path string, s *server) error {
	proxy := b.proxyAt(s)
	return cluster.WriteKubeconfig(path, proxy.URL, proxy.CA, clientcmdapi.AuthInfo{Token: b.api.Token})
}

// continued returns the paths of the pages after the first.
func (b *bench) continued(ctx context.Context, first string) (pages []string, err error) {
	for path := first; ; {
		body, err := b.secure.proxy.get(ctx, request{path: path})
		if err != nil {
			return nil, err
		}
		next := gjson.GetBytes(body, "metadata.continue").Str
		if next == "" {
			return pages, nil
		}
		path = first + "&continue=" + url.QueryEscape(next)
		pages = append(pages, path)
	}
}
