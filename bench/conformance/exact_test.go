//go:build verify

package conformance

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Clients that write protobuf can use names and values that are not UTF-8. In JSON, different ones
// look the same.
func TestTextThatIsNotUTF8(t *testing.T) {
	server := another(t, cluster.Options{})
	config := server.RESTConfig()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	writer := kubernetes.NewForConfigOrDie(config)
	namespace := server.NamespaceT(t, "text")
	const group = "/apis/rbac.authorization.k8s.io/v1"
	rolesIn, podsIn := group+"/namespaces/"+namespace+"/roles", pods.in(namespace)
	compareAll := func() {
		t.Helper()
		for _, path := range []string{
			rolesIn, rolesIn + "?resourceVersion=0", rolesIn + "?limit=1", group + "/roles?resourceVersion=0",
			rolesIn + "/a%FF?resourceVersion=0", rolesIn + "/a%FE?resourceVersion=0", rolesIn + "/a%EF%BF%BD?resourceVersion=0",
			rolesIn + "?resourceVersion=0&fieldSelector=metadata.name%3Db%FF", rolesIn + "?resourceVersion=0&fieldSelector=metadata.name%3Db%EF%BF%BD",
			group + "/roles?resourceVersion=0&fieldSelector=metadata.name!%3Db%FF", rolesIn + "?fieldSelector=metadata.name%3Da%FE",
			podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName%3Ds%FF", podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName!%3Ds%FF",
			podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName%3Ds%EF%BF%BD", podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName!%3Ds%EF%BF%BD",
			podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName%3Ds", podsIn + "?resourceVersion=0&fieldSelector=spec.schedulerName!%3Ds", podsIn + "?resourceVersion=0",
		} {
			var open Rule
			if !strings.HasPrefix(path, rolesIn+"/") {
				open = SomeState(0)
			}
			for _, accept := range kept {
				row{name: path, from: anywhere, request: get(path).With("Accept", accept), open: open, moving: true}.check(t)
			}
		}
	}
	compareAll()
	must(t, proxied, get(rolesIn+"?resourceVersion=0"), 200)
	names := []string{"a\xff", "a\xfe", "b\xff", "c"}
	for _, name := range names {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := writer.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, scheduler := range []string{"s\xff", "s\xfe", "s\ufffd", "s"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)},
			Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		}
		if _, err := writer.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	compareAll()
	if err := server.Client().RbacV1().Roles(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "roles come from the cache again", func() bool {
		got := must(t, proxied, get(rolesIn+"?resourceVersion=0"), 200)
		from, err := answers.of(t.Context(), got.Header)
		return err == nil && from == cache
	})
	compareAll()
}
