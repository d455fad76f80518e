package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// table is what kubectl and dashboards accept.
const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// step is the time between two visits of a dashboard, and between two commands of a CI job.
const step = 10 * time.Second

// visit is a dashboard: page after page of all pods as a Table, and with each page a namespace's
// pods and one of them.
func (c *crowd) visit(ctx context.Context, i int) error {
	config, err := c.config(fmt.Sprintf("dashboard-%d", i), "system:masters")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	core := client.CoreV1().RESTClient()
	random := rand.New(rand.NewPCG(c.w.seed, uint64(i)))
	for token := ""; ctx.Err() == nil; cluster.Pause(ctx, step) {
		// The recorder counts errors.
		page, err := core.Get().Resource("pods").Param("limit", "500").Param("continue", token).SetHeader("Accept", table).DoRaw(ctx)
		token = ""
		if err == nil {
			var list struct{ Metadata metav1.ListMeta }
			if err := json.Unmarshal(page, &list); err != nil {
				return fmt.Errorf("a page of pods: %w", err)
			}
			token = list.Metadata.Continue
		}
		pod := c.w.newPod(random.IntN(c.w.nodes * c.w.podsPerNode))
		_, _ = core.Get().Namespace(pod.Namespace).Resource("pods").SetHeader("Accept", table).DoRaw(ctx)
		_, _ = core.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).DoRaw(ctx)
	}
	return nil
}

// build is a CI job: it runs kubectl commands, one after another.
func (c *crowd) build(ctx context.Context, i int) error {
	kubectl, err := cluster.Kubectl()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.w.dir, "job-")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	certificate, key, err := c.identity(fmt.Sprintf("job-%d", i), "system:masters")
	if err != nil {
		return err
	}
	user := clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	if err := cluster.WriteKubeconfig(kubeconfig, c.road.url, c.road.ca, user); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(c.w.seed, uint64(i)))
	for ctx.Err() == nil {
		ns := namespace(random.IntN(c.w.services))
		for _, command := range []string{
			"create configmap NAME --from-literal=commit=" + ns, "get configmap NAME -o yaml", "get pods -o wide",
			"get services,endpointslices", "get databases", "delete configmap NAME",
		} {
			began := time.Now()
			words := strings.Fields(strings.ReplaceAll(command, "NAME", fmt.Sprintf("build-%d", i)))
			cmd := exec.CommandContext(ctx, kubectl, append([]string{"--namespace", ns}, words...)...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+dir)
			verb, _, _ := strings.Cut(command, " ")
			if err := cmd.Run(); err == nil {
				c.r.took("kubectl "+verb, time.Since(began))
			} else if ctx.Err() == nil {
				c.r.code("kubectl failed")
			}
			cluster.Pause(ctx, step)
		}
	}
	return nil
}
