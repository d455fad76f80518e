package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/k8sattributesprocessor"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/discovery"
	discoverykube "github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// discover prints each pod when Prometheus' discovery finds it.
func discover(ctx context.Context, _ int) error {
	config := discoverykube.DefaultSDConfig
	config.Role, config.KubeConfig = discoverykube.RolePod, os.Getenv("KUBECONFIG")
	registry := prometheus.NewRegistry()
	metrics := config.NewDiscovererMetrics(registry, discovery.NewRefreshMetrics(registry))
	if err := metrics.Register(); err != nil {
		return err
	}
	found, err := config.NewDiscoverer(discovery.DiscovererOptions{Logger: promslog.NewNopLogger(), Metrics: metrics})
	if err != nil {
		return err
	}
	groups := make(chan []*targetgroup.Group)
	go found.Run(ctx, groups) // until the process ends
	for {
		select {
		case some := <-groups:
			for _, g := range some {
				const pod = "__meta_kubernetes_pod_"
				fmt.Println(g.Labels[pod+"name"], g.Labels[pod+"node_name"], g.Labels[pod+"phase"])
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lookUp prints what the k8sattributes processor adds to a log record of each pod.
func lookUp(ctx context.Context, pods int) (err error) {
	factory := k8sattributesprocessor.NewFactory()
	config := factory.CreateDefaultConfig()
	err = confmap.NewFromStringMap(map[string]any{
		"auth_type": "kubeConfig", "wait_for_metadata": true, "wait_for_metadata_timeout": limit.String(),
		"extract": map[string]any{"metadata": []any{"k8s.node.name", "k8s.pod.start_time", "k8s.pod.uid"}},
		"pod_association": []any{map[string]any{"sources": []any{
			map[string]any{"from": "resource_attribute", "name": "k8s.pod.name"},
			map[string]any{"from": "resource_attribute", "name": "k8s.namespace.name"},
		}}},
	}).Unmarshal(config)
	if err != nil {
		return err
	}
	sink := new(consumertest.LogsSink)
	processor, err := factory.CreateLogs(ctx, processortest.NewNopSettings(factory.Type()), config, sink)
	if err != nil {
		return err
	}
	if err := processor.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, processor.Shutdown(ctx)) }()
	for i := range pods {
		pod, logs := workload.NewPod(i), plog.NewLogs()
		resource := logs.ResourceLogs().AppendEmpty()
		resource.Resource().Attributes().PutStr("k8s.pod.name", pod.Name)
		resource.Resource().Attributes().PutStr("k8s.namespace.name", pod.Namespace)
		resource.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		if err := processor.ConsumeLogs(ctx, logs); err != nil {
			return err
		}
		has := sink.AllLogs()[0].ResourceLogs().At(0).Resource().Attributes()
		sink.Reset()
		node, _ := has.Get("k8s.node.name")
		start, _ := has.Get("k8s.pod.start_time")
		fmt.Println(pod.Name, node.AsString(), start.AsString())
	}
	return nil
}
