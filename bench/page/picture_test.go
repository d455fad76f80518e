//go:build verify

package page

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	picture  = flag.String("picture", "", "PNG `FILE` to write a picture of the page to")
	pictured = flag.String("proxy", "", "`FILE` of the proxy in the picture, which has a version")
)

// TestPicture is not a test. `make screenshot` uses it to make the picture in the README. Three users
// run 60 watches, some lists and some writes, until the charts are full.
func TestPicture(t *testing.T) {
	if *picture == "" {
		t.Skip("only with -picture: make screenshot")
	}
	api := cluster.APIServerT(t, cluster.Options{Users: users("agent", "dashboard", "deployer")})
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig, Binary: *pictured, TLS: true, Args: []string{"--authentication=delegated"}})
	clientOf := func(user string) kubernetes.Interface {
		config := proxy.RESTConfig()
		config.ContentType, config.BearerToken = "application/json", tokenOf(user)
		client, err := kubernetes.NewForConfig(config)
		cluster.MustT(t, err)
		return client
	}
	client := clientOf("deployer")
	const pods, watches, lasts = 400, 20, 125 * time.Second
	for i := range pods {
		writePod(t, client, i)
	}
	core := clientOf("agent").CoreV1().RESTClient()
	for range watches {
		for _, resource := range []string{"pods", "configmaps", "services"} {
			w, err := core.Get().Resource(resource).VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: "0"}, scheme.ParameterCodec).Watch(t.Context())
			cluster.MustT(t, err)
			var done sync.WaitGroup
			done.Go(func() {
				for range w.ResultChan() {
				}
			})
			t.Cleanup(func() {
				w.Stop()
				done.Wait()
			})
		}
	}

	ctx := browser(t)
	run(ctx, t, "colours", colours("light"))
	run(ctx, t, "resize", chromedp.EmulateViewport(1080, 1010, chromedp.EmulateScale(2)))
	run(ctx, t, "open the page", chromedp.Navigate(proxy.AdminURL+"/"))
	core = clientOf("dashboard").CoreV1().RESTClient()
	const reads, pause = 8, 100 * time.Millisecond
	for i, end := 0, time.Now().Add(lasts); time.Now().Before(end); i++ {
		writePod(t, client, i%pods)
		for range reads + i%7 {
			get := core.Get().Resource("pods").VersionedParams(&metav1.ListOptions{ResourceVersion: "0", LabelSelector: "app=web"}, scheme.ParameterCodec)
			cluster.MustT(t, get.Do(t.Context()).Error())
		}
		time.Sleep(pause)
	}
	shot := run(ctx, t, "picture", chromedp.CaptureScreenshot())
	cluster.MustT(t, os.WriteFile(*picture, shot, 0o644))
}

// writePod creates a pod, or changes it if it exists.
func writePod(t *testing.T, client kubernetes.Interface, i int) {
	t.Helper()
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	name := fmt.Sprintf("web-%03d", i)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"seen":%q}}}`, time.Now().Format(time.RFC3339Nano))
	_, err := pods.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	}
	cluster.MustT(t, err)
}
