package hostile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// The users, and the namespace that each user may use.
const (
	attackerUser, attackerSpace = "attacker", "attacked"
	victimUser, victimSpace     = "victim", "victims"
	victimPods                  = 200
)

func tokenOf(user string) string { return user + "-token" }

// attackedPods returns the number of pods that the attackers can list.
func attackedPods() int {
	const short, long = 1500, 5000
	if atLength() {
		return long
	}
	return short
}

// world has the state that all rows share.
type world struct {
	memory int64 // the proxy's budget
	api    *cluster.APIServer
	admin  *kubernetes.Clientset
	front  *target

	victim      *victim
	undisturbed report
}

func newWorld(t *testing.T, memory int64) *world {
	t.Helper()
	var users strings.Builder
	for _, user := range []string{attackerUser, victimUser} {
		fmt.Fprintf(&users, "%s,%s,%s-uid\n", tokenOf(user), user, user)
	}
	w := &world{memory: memory, api: cluster.APIServerT(t, cluster.Options{Users: users.String()})}
	w.admin = w.api.Client()
	w.fill(t)
	w.front = w.startFront(t)
	return w
}

// fill creates the objects that the attackers and the victim read, and grants them the right to
// read these objects.
func (w *world) fill(t *testing.T) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	for user, namespace := range map[string]string{attackerUser: attackerSpace, victimUser: victimSpace} {
		w.api.NamespaceT(t, namespace)
		err := w.api.Allow(ctx, namespace, user, cluster.Users(user),
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "configmaps"}, Verbs: []string{"get", "list", "watch", "create"}})
		cluster.MustT(t, err)
	}
	counter := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: counterName}, Data: map[string]string{"n": "0"}}
	if _, err := w.admin.CoreV1().ConfigMaps(victimSpace).Create(ctx, counter, create); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for i := range 20_000 {
		labels[fmt.Sprint("label-", i)] = "x"
	}
	labelled := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: labelledName, Labels: labels}}
	if _, err := w.admin.CoreV1().ConfigMaps(attackerSpace).Create(ctx, labelled, create); err != nil {
		t.Fatal(err)
	}
	const untracked = `{"metadata":{"managedFields":[{}]}}` // otherwise a patch takes the apiserver a second
	if _, err := w.admin.CoreV1().ConfigMaps(attackerSpace).Patch(ctx, labelledName, types.MergePatchType, []byte(untracked), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	const parallel, configMaps, large = 16, 100, 30 << 10
	for namespace, n := range map[string]int{attackerSpace: attackedPods(), victimSpace: victimPods} {
		if err := workload.Parallel(ctx, n, parallel, func(ctx context.Context, i int) error {
			pod := workload.NewPod(i)
			pod.Namespace, pod.Name = namespace, podName(namespace, i)
			_, err := w.admin.CoreV1().Pods(namespace).Create(ctx, pod, create)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := workload.Parallel(ctx, configMaps, parallel, func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)}
		_, err := w.admin.CoreV1().ConfigMaps(attackerSpace).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"x": strings.Repeat("x", large)}}, create)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func podName(namespace string, i int) string { return fmt.Sprintf("%s-%05d", namespace, i) }

func podsPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/pods"
}
