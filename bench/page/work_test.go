package page

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// users are lines of the apiserver's token file. The users may do everything.
func users(names ...string) (lines string) {
	for _, name := range names {
		lines += tokenOf(name) + "," + name + "," + name + ",system:masters\n"
	}
	return lines
}

func tokenOf(user string) string { return user + "-token" }

// create creates n objects and returns the last one's resourceVersion. The resource is one of which
// a new apiserver has no objects.
func create(t *testing.T, client kubernetes.Interface, n int) (resourceVersion string) {
	t.Helper()
	for range n {
		object := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{GenerateName: "seen-"}}
		created, err := client.CoreV1().LimitRanges(metav1.NamespaceDefault).Create(t.Context(), object, metav1.CreateOptions{})
		cluster.MustT(t, err)
		resourceVersion = created.ResourceVersion
	}
	return resourceVersion
}

// list lists the objects, which starts their feed.
func list(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	if _, err := client.CoreV1().LimitRanges("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// watch watches the objects until the end of the test.
func watch(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	w, err := client.CoreV1().LimitRanges("").Watch(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	t.Cleanup(w.Stop)
}
