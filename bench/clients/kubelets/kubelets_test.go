package kubelets

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	count  = flag.Int("kubelets", 8, "number of kubelets")
	report = flag.String("report", "", "file for what the apiserver sees of the kubelets")
)

const (
	namespace   = "work"
	podsPerNode = 4 // pods of the Deployment for each node
	// stageLimit is the time for each stage of the Deployment's life.
	stageLimit = 10 * time.Minute
)

// life is what users see of the Deployment at the end of each stage, without what differs between
// two runs, such as names and times.
type life map[string][]string

// TestKubelets compares the life of a Deployment whose kubelets take each of the roads.
func TestKubelets(t *testing.T) {
	lives, seen := map[road]life{}, map[road]traffic{}
	for _, r := range []road{direct, perNode, shared} {
		t.Run(r.String(), func(t *testing.T) {
			w := newWorld(t, r, *count)
			lives[r] = w.live(t)
			seen[r] = w.traffic(t)
			w.check(t, r, seen[r])
		})
	}
	if t.Failed() || len(seen) != 3 { // -run has chosen one road
		return
	}
	for stage, want := range lives[direct] {
		for _, r := range []road{perNode, shared} {
			if got := lives[r][stage]; !slices.Equal(got, want) {
				t.Errorf("%v, %s:\n%.3000s\ndirectly:\n%.3000s", r, stage, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	text := table(t, seen)
	t.Log("\n" + text)
	if *report != "" {
		cluster.MustT(t, os.WriteFile(*report, []byte(text), 0o644))
	}
}

// live runs a Deployment through its life.
func (w *world) live(t *testing.T) life {
	t.Helper()
	ctx, client := t.Context(), w.server.Client()
	w.server.NamespaceT(t, namespace)
	w.within(t, stageLimit, "the namespace has its service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	w.writeConfig(t, "first")
	all := *count * podsPerNode
	deployments, l := client.AppsV1().Deployments(namespace), life{}
	if _, err := deployments.Create(ctx, deployment(all), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.rolledOut(t, all)
	w.mounted(t, "first", all)
	l["up"] = w.pods(t)
	w.writeConfig(t, "second")
	w.mounted(t, "second", all)

	image := `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"app:2"}]}}}}`
	if _, err := deployments.Patch(ctx, "app", types.StrategicMergePatchType, []byte(image), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.rolledOut(t, all)
	w.mounted(t, "second", all)
	l["rolled"] = w.pods(t)
	l["nodes"] = w.nodesStatus(t)

	cluster.MustT(t, deployments.Delete(ctx, "app", metav1.DeleteOptions{}))
	w.within(t, stageLimit, "no pods are left", func() bool { return len(w.pods(t)) == 0 })
	return l
}

// writeConfig creates or updates the ConfigMap and the Secret that the pods mount.
func (w *world) writeConfig(t *testing.T, value string) {
	t.Helper()
	core := w.server.Client().CoreV1()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"value": value}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"value": value}}
	_, err := core.ConfigMaps(namespace).Update(t.Context(), config, metav1.UpdateOptions{})
	if err != nil {
		_, err = core.ConfigMaps(namespace).Create(t.Context(), config, metav1.CreateOptions{})
	}
	cluster.MustT(t, err)
	_, err = core.Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
	if err != nil {
		_, err = core.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	}
	cluster.MustT(t, err)
}

func deployment(replicas int) *appsv1.Deployment {
	n, labels := int32(replicas), map[string]string{"app": "app"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(1)),
					Containers: []corev1.Container{{
						Name: "app", Image: "app:1",
						VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}},
					}},
					Volumes: []corev1.Volume{
						{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
						{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}},
					},
				},
			},
		},
	}
}

// rolledOut waits until exactly the pods of the last template are there and ready.
func (w *world) rolledOut(t *testing.T, all int) {
	t.Helper()
	w.within(t, stageLimit, "the Deployment is rolled out", func() bool {
		d, err := w.server.Client().AppsV1().Deployments(namespace).Get(t.Context(), "app", metav1.GetOptions{})
		cluster.MustT(t, err)
		s := d.Status
		return s.ObservedGeneration == d.Generation && int(s.UpdatedReplicas) == all && int(s.ReadyReplicas) == all &&
			int(s.Replicas) == all && w.running(t) == all
	})
}

// running returns the number of pods with the last status that their kubelets report. If there are
// other pods, it returns 0.
func (w *world) running(t *testing.T) (n int) {
	t.Helper()
	for _, status := range w.pods(t) {
		if !strings.Contains(status, `"phase":"Running"`) || !strings.Contains(status, `{"type":"PodReadyToStartContainers","status":"True"`) {
			return 0
		}
		n++
	}
	return n
}

// mounted waits until the volumes of all pods have a value, in the files of the kubelets.
func (w *world) mounted(t *testing.T, value string, all int) {
	t.Helper()
	w.within(t, stageLimit, "volumes have the value "+value, func() bool {
		for _, kind := range []string{"configmap", "secret"} {
			n := 0
			for _, node := range w.kubelets {
				files, err := filepath.Glob(node.Dir + "/pods/*/volumes/kubernetes.io~" + kind + "/*/value")
				cluster.MustT(t, err)
				for _, file := range files {
					if b, err := os.ReadFile(file); err == nil && string(b) == value {
						n++
					}
				}
			}
			if n != all {
				return false
			}
		}
		return true
	})
}

// pods returns the statuses of the Deployment's pods, without what differs between two runs.
func (w *world) pods(t *testing.T) (all []string) {
	t.Helper()
	list, err := w.server.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	for i := range list.Items {
		p := &list.Items[i]
		s := p.Status
		s.PodIP, s.PodIPs, s.StartTime = "", nil, nil
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime, s.Conditions[i].LastProbeTime, s.Conditions[i].ObservedGeneration = metav1.Time{}, metav1.Time{}, 0
		}
		for i := range s.ContainerStatuses {
			c := &s.ContainerStatuses[i]
			c.ContainerID = ""
			for j := range c.VolumeMounts {
				if strings.HasPrefix(c.VolumeMounts[j].Name, "kube-api-access-") {
					c.VolumeMounts[j].Name = "kube-api-access"
				}
			}
			if c.State.Running != nil {
				c.State.Running.StartedAt = metav1.Time{}
			}
		}
		all = append(all, sprint(t, s))
	}
	slices.Sort(all)
	return all
}

// nodesStatus returns the statuses of nodes, without times.
func (w *world) nodesStatus(t *testing.T) (all []string) {
	t.Helper()
	list, err := w.server.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	for i := range list.Items {
		n := &list.Items[i]
		s := n.Status
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime, s.Conditions[i].LastHeartbeatTime = metav1.Time{}, metav1.Time{}
		}
		all = append(all, n.Name+" "+sprint(t, s.Conditions)+sprint(t, s.Capacity)+sprint(t, n.Spec.Taints))
	}
	slices.Sort(all)
	return all
}

func sprint(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	cluster.MustT(t, err)
	return string(b)
}
