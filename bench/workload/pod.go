package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Nodes is the number of nodes with pods.
const Nodes = 50

var components = []string{"api", "web", "worker", "indexer", "scheduler", "gateway", "cache", "exporter"}

// NodeName returns the name of one of [Nodes] nodes. The nodes do not exist.
func NodeName(i int) string { return fmt.Sprintf("worker-%02d", i%Nodes) }

// NewPod returns the i-th pod as it looks after a Deployment's controller has created it and a
// kubelet runs it. It has 4.5 KB of JSON, including the fields that the server adds. The same i
// always gives the same pod.
func NewPod(i int) *corev1.Pod {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	namespace, component := Namespaces[i%len(Namespaces)], components[i/len(Namespaces)%len(components)]
	app := namespace + "-" + component
	image := fmt.Sprintf("registry.example.com/%s/%s:v1.%d.%d", namespace, component, random.IntN(40), random.IntN(10))
	started := metav1.NewTime(time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC).Add(time.Duration(random.IntN(86400)) * time.Second))
	template := fmt.Sprintf("%09x", random.Uint64N(1<<36))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      fmt.Sprintf("%s-%s-%05d", app, template, i),
			Labels: map[string]string{
				"app.kubernetes.io/name":    component,
				"app.kubernetes.io/part-of": namespace,
				"pod-template-hash":         template,
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-" + template,
				UID: newUID(random), Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec:   podSpec(app, image, NodeName(random.IntN(Nodes))),
		Status: podStatus(random, image, started),
	}
}

// CreatePod creates a pod and then writes its status, because the server refuses to create a
// running pod. The field managers have the same names as for real pods.
func CreatePod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{FieldManager: "kube-controller-manager"})
	if err == nil {
		created.Status = pod.Status
		_, err = pods.UpdateStatus(ctx, created, metav1.UpdateOptions{FieldManager: "kubelet"})
	}
	if err != nil {
		return fmt.Errorf("cannot create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func podSpec(app, image, node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName: node,
		// Delete pods immediately, because there is no kubelet that could end them.
		TerminationGracePeriodSeconds: new(int64(0)),
		Containers: []corev1.Container{{
			Name:  "app",
			Image: image,
			Args:  []string{"--listen=:8080", "--log-format=json"},
			Env: []corev1.EnvVar{
				{Name: "DATABASE_HOST", Value: app + "-postgres.internal"},
				{Name: "OTEL_SERVICE_NAME", Value: app},
			},
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
			},
		}},
	}
}

func podStatus(random *rand.Rand, image string, started metav1.Time) corev1.PodStatus {
	ip := fmt.Sprintf("10.%d.%d.%d", random.IntN(256), random.IntN(256), 1+random.IntN(254))
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		QOSClass:  corev1.PodQOSBurstable,
		PodIP:     ip,
		PodIPs:    []corev1.PodIP{{IP: ip}},
		StartTime: &started,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", Ready: true, Started: new(true), Image: image,
			ImageID:     fmt.Sprintf("%s@sha256:%016x%016x%016x%016x", image, random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()),
			ContainerID: fmt.Sprintf("containerd://%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		}},
	}
	for _, t := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: started})
	}
	return status
}

func newUID(random *rand.Rand) types.UID {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(random.Uint32())
	}
	return types.UID(id.String())
}
