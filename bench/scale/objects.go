package main

import (
	"fmt"
	"math/rand/v2"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/workload"
)

const leases = "kube-node-lease" // namespace

func nodeName(i int) string  { return fmt.Sprintf("node-%04d", i) }
func namespace(i int) string { return fmt.Sprintf("team-%04d", i) }

// newNode returns a node as a cloud's looks, with the list of its images: 7 KB of JSON.
func newNode(i int) *corev1.Node {
	random := rand.New(rand.NewPCG(uint64(i), 2))
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelInstanceTypeStable: "standard-8", corev1.LabelTopologyRegion: "north",
			corev1.LabelTopologyZone: fmt.Sprintf("north-%d", i%3),
		}},
		Spec: corev1.NodeSpec{ProviderID: "example://" + nodeName(i), PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 64+i/256, i%256)},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.16.%d.%d", i/256, i%256)},
				{Type: corev1.NodeHostName, Address: nodeName(i)},
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: fmt.Sprintf("%032x", i), KernelVersion: "6.12.0", OSImage: "Debian GNU/Linux 13", Architecture: "amd64",
				ContainerRuntimeVersion: "containerd://2.2.0", KubeletVersion: "v1.37.2", OperatingSystem: "linux",
			},
		},
	}
	for i, t := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady,
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: t, Status: []corev1.ConditionStatus{"False", "False", "False", "True"}[i], Reason: "Kubelet" + string(t), LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for n := range 25 {
		name := fmt.Sprintf("registry.example.com/images/component-%d", n)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%064x", name, random.Uint64()), name + ":v1.2.3"},
			SizeBytes: random.Int64N(1 << 28),
		})
	}
	return node
}

func newLease(node string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leases, Name: node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node, UID: "00000000-0000-4000-8000-000000000000"},
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: new(int32(40))},
	}
}

// newPod returns the i-th pod of the cluster.
func (s size) newPod(i int) *corev1.Pod {
	pod := workload.NewPod(i)
	pod.Namespace, pod.Spec.NodeName = namespace(i%s.services), nodeName(i%s.nodes)
	pod.Labels["app"] = pod.Namespace
	return pod
}

// newChurnPod returns a pod that a Deployment starts: its node starts it, as stages.yaml says.
func (s size) newChurnPod(i int, random *rand.Rand) *corev1.Pod {
	pod := s.newPod(random.IntN(s.nodes * s.podsPerNode))
	pod.Name = fmt.Sprintf("churn-%d", i)
	pod.Spec.NodeName = nodeName(random.IntN(s.nodes))
	pod.Labels["starts"] = "true"
	pod.Status = corev1.PodStatus{}
	return pod
}

func newService(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "web", Labels: map[string]string{"app": namespace(i)}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": namespace(i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "metrics", Port: 9090}},
		},
	}
}

// newSlice returns the endpoints of a service: the pods of its namespace.
func (s size) newSlice(i int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "web", Labels: map[string]string{
			discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for n := i; n < s.nodes*s.podsPerNode; n += s.services {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 64+n/65536, n/256%256, n%256)},
			NodeName:   new(nodeName(n % s.nodes)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	return slice
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	databases   = schema.GroupVersionResource{Group: "scale.watchproxy.dev", Version: "v1", Resource: "databases"}
)

func newDefinition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": databases.GroupResource().String()},
		"spec": map[string]any{
			"group": databases.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": databases.Resource, "singular": "database", "kind": "Database"},
			"versions": []any{map[string]any{
				"name": databases.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
}

func (s size) newDatabase(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": databases.GroupVersion().String(), "kind": "Database",
		"metadata": map[string]any{"namespace": namespace(i % s.services), "name": fmt.Sprintf("database-%d", i)},
		"spec": map[string]any{
			"engine": "postgres", "version": "18.1", "replicas": int64(3), "storage": "100Gi",
			"parameters": map[string]any{"max_connections": "500", "shared_buffers": "8GB", "work_mem": "64MB"},
			"backup":     map[string]any{"schedule": "0 3 * * *", "retention": "30d", "bucket": "backups-" + namespace(i%s.services)},
		},
	}}
}
