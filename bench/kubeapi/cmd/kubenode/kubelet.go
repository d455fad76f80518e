package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/cri-client/pkg/fake"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
)

// maxPods is the kubelet's default.
const maxPods = 110

// runtimeLimit limits a call of the fake runtime.
const runtimeLimit = 15 * time.Second

func newKubeletCommand() *cobra.Command {
	var kubeconfig, name, root string
	cmd := &cobra.Command{Use: "kubelet", Args: cobra.NoArgs, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
		return runKubelet(cmd.Context(), kubeconfig, name, root)
	}}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "file with the node's identity")
	cmd.Flags().StringVar(&name, "name", "", "name of the node")
	cmd.Flags().StringVar(&root, "root-dir", "", "existing directory for its files")
	return cmd
}

func runKubelet(ctx context.Context, kubeconfig, name, root string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "kubelet"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.QPS, config.Burst = 50, 100 // the kubelet's defaults
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	flags, settings := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{NodeName: name, MaxPods: maxPods})
	settings.EnableServer = false
	// The directories that GetHollowKubeletConfig creates are in /tmp, whatever TMPDIR says.
	if err := os.RemoveAll(flags.RootDirectory); err != nil {
		return err
	}
	started("kubelet")
	flags.RootDirectory, settings.StaticPodPath, settings.PodLogsDir = root, "", filepath.Join(root, "logs")
	heartbeats := *config
	heartbeats.Timeout = settings.NodeStatusUpdateFrequency.Duration
	heartbeats.QPS = -1
	heartbeat, err := kubernetes.NewForConfig(&heartbeats)
	if err != nil {
		return err
	}
	endpoint := "unix://" + filepath.Join(root, "runtime.sock")
	containers := fake.NewFakeRemoteRuntime()
	if err := containers.Start(endpoint); err != nil {
		return fmt.Errorf("fake runtime: %w", err)
	}
	runtime, err := remote.NewRemoteRuntimeService(ctx, endpoint, runtimeLimit, noop.NewTracerProvider(), false)
	if err != nil {
		return fmt.Errorf("client of the fake runtime: %w", err)
	}
	kubemark.NewHollowKubelet(flags, settings, client, heartbeat, &testing.Fake{NodeName: name},
		containers.ImageService, runtime, cm.NewStubContainerManager()).Run(ctx)
	return nil
}
