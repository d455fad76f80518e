//go:build verify

package page

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

//go:embed attacks.js
var attacks string

// rebound is a host name that first leads to a hostile page. After the page is loaded, its owner's
// name server makes the name point to loopback.
const rebound = "rebound.example"

// siege is a cluster with one object to steal and one to change.
type siege struct {
	client kubernetes.Interface
	marker string // a secret text that exists only in the cluster
	victim string // the resourceVersion of the object to change
}

func besiege(t *testing.T, api *cluster.APIServer) *siege {
	t.Helper()
	client := api.Client()
	s := &siege{client: client, marker: strings.ToLower("marker-" + rand.Text())}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.marker}, StringData: map[string]string{"password": s.marker}}
	if _, err := client.CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	victim, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "victim"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.victim = victim.ResourceVersion
	return s
}

// written returns the names of the objects that pages have created or changed.
func (s *siege) written(t *testing.T) (names []string) {
	t.Helper()
	all, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	victim := false
	for _, o := range all.Items {
		if strings.HasPrefix(o.Name, "written-") {
			names = append(names, o.Name)
		}
		victim = victim || o.Name == "victim" && o.ResourceVersion == s.victim
	}
	if !victim {
		names = append(names, "victim")
	}
	return names
}

// attack loads a page from one origin, which tries all attacks on another origin.
func attack(ctx context.Context, t *testing.T, page, target, tag string) map[string]string {
	t.Helper()
	run(ctx, t, "open "+page, chromedp.Navigate(page))
	script := fmt.Sprintf("%s(%q, %q)", strings.TrimSpace(attacks), target, tag)
	return run(ctx, t, "attack "+target, chromedp.Evaluate[map[string]string](script, chromedp.EvalAwaitPromise))
}

// hostile serves an empty page under every host name.
func hostile(t *testing.T) (port string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>hostile</title><body></body>")
	}))
	t.Cleanup(s.Close)
	return s.URL[strings.LastIndex(s.URL, ":"):]
}

// trusting serves every client as the cluster's admin, like a proxy without checks.
func trusting(t *testing.T, api *cluster.APIServer) (address string) {
	t.Helper()
	config := api.RESTConfig()
	config.NextProtos = []string{"http/1.1"} // WebSockets need HTTP/1.1
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	t.Cleanup(s.Close)
	return s.URL
}

func hostileBrowser(t *testing.T) context.Context {
	t.Helper()
	return browser(t, chromedp.Flag("host-resolver-rules", "MAP *.example 127.0.0.1"))
}

// Pages of other origins can neither read from the cluster nor write to it, by any of the attacks
// and under any host name.
func TestHostilePages(t *testing.T) {
	api := cluster.APIServerT(t, cluster.Options{})
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig, Settings: "profiling: true\n"})
	s := besiege(t, api)
	ctx, port := hostileBrowser(t), hostile(t)
	passed := func() float64 {
		m := proxy.MetricsT(t)
		return m.Sum("watchproxy_requests_total", `source="cache"`) + m.Sum("watchproxy_requests_total", `source="upstream"`)
	}
	before := passed()
	for i, page := range []string{"http://evil.example" + port, "http://localhost" + port, "http://127.0.0.1" + port} {
		for j, target := range []string{proxy.URL, proxy.AdminURL} {
			for name, learned := range attack(ctx, t, page, target, fmt.Sprint("other-", i, j)) {
				if learned != "" && learned != "opaque 0 " {
					t.Errorf("%s at %s: %s: the page learns %.200q", page, target, name, learned)
				}
			}
		}
	}
	// The same-origin policy lets this page read the answers, but they are only refusals.
	for i, target := range []string{proxy.URL, proxy.AdminURL} {
		there := strings.Replace(target, "127.0.0.1", rebound, 1)
		for name, learned := range attack(ctx, t, there, there, fmt.Sprint("rebound-", i)) {
			if strings.Contains(learned, s.marker) || strings.Contains(learned, " 200 ") || strings.Contains(learned, "open") || strings.Contains(learned, "undecided") {
				t.Errorf("%s: %s: the page learns %.200q", there, name, learned)
			}
		}
	}
	// The browser may delay beacons.
	for _, target := range []struct{ listener, reason string }{{"clients", "site"}, {"clients", "origin"}, {"clients", "host"}, {"admin", "site"}, {"admin", "host"}} {
		cluster.Eventually(t, fmt.Sprint("refusals by ", target), func() bool {
			return proxy.MetricsT(t).Sum("watchproxy_browser_refusals_total", `listener="`+target.listener+`"`, `reason="`+target.reason+`"`) > 0
		})
	}
	if names := s.written(t); len(names) != 0 {
		t.Errorf("pages have written %v", names)
	}
	if now := passed(); now != before {
		t.Errorf("%v requests of pages were answered", now-before)
	}

	// If a user follows a link from another site, the proxy refuses with an explanation. It does
	// not refuse a typed address.
	run(ctx, t, "open a page", chromedp.Navigate("http://evil.example"+port))
	// The browser must have answered before it leaves the page.
	run(ctx, t, "follow a link", chromedp.Evaluate[bool](fmt.Sprintf("(setTimeout(() => { location.href = %q }), true)", proxy.URL+"/version")))
	until(ctx, t, `document.body?.innerText.includes("type the address into the browser")`)
	run(ctx, t, "type the address", chromedp.Navigate(proxy.URL+"/version"))
	until(ctx, t, `document.body.innerText.includes("gitVersion")`)
}

// The attacks work: against a proxy without checks they succeed.
func TestHostilePagesBite(t *testing.T) {
	api := cluster.APIServerT(t, cluster.Options{})
	s := besiege(t, api)
	ctx, port, target := hostileBrowser(t), hostile(t), trusting(t, api)
	learned := attack(ctx, t, "http://evil.example"+port, target, "bare")
	if got := learned["watch by WebSocket"]; !strings.Contains(got, s.marker) {
		t.Errorf("the page learns %.200q only", got)
	}
	for _, name := range []string{"untyped", "alive", "beacon", "sandboxed"} {
		name := "written-bare-" + name
		cluster.Eventually(t, name, func() bool {
			_, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
			return err == nil
		})
	}
	there := strings.Replace(target, "127.0.0.1", rebound, 1)
	learned = attack(ctx, t, there, there, "rebound")
	for _, name := range []string{"watch by WebSocket", "cors GET /api/v1/namespaces/default/secrets", "same-origin GET /api/v1/namespaces/default/secrets", "frame", "XMLHttpRequest"} {
		if !strings.Contains(learned[name], s.marker) {
			t.Errorf("rebound, %s: the page learns %.200q only", name, learned[name])
		}
	}
	cluster.Eventually(t, "the victim's end", func() bool {
		names := s.written(t)
		return len(names) > 0 && names[len(names)-1] == "victim"
	})
}
