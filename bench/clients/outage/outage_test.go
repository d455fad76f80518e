package outage

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// outage is the time for which the apiserver is down.
const outage = 10 * time.Second

// The apiserver is killed under load and comes back after a while. Then it is restarted in an
// orderly way, twice. Meanwhile watches stay connected, reads of any state are answered, and other
// reads fail immediately. In the end, each watch has seen every change exactly once.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	crowd := newCrowd(t, w)
	writer := startWriter(t, w, crowd[0])
	writer.proceed(t, 100)

	w.API.Kill()
	const looks = 20
	for range looks {
		const every = outage / looks
		next := time.After(every)
		whileAway(t, w)
		crowd.stay(t)
		<-next
	}
	restart(t, w)
	writer.proceed(t, 100)
	crowd.stay(t)
	steps, failures, _ := writer.progress()
	t.Logf("after the crash: %d steps, %d attempts failed", steps, failures)

	if err := w.API.Stop(); err != nil {
		t.Error(err)
	}
	whileAway(t, w)
	restart(t, w)
	writer.proceed(t, 100)
	crowd.stay(t)

	writer.stop()
	crowd.check(t, w, writer)
}

// restart starts the apiserver. The next forwarded requests must succeed immediately, so the proxy
// must not use a dead connection.
func restart(t *testing.T, w *clients.World) {
	t.Helper()
	start(t, w.API)
	proxy := w.Endpoints(t)[1]
	if got := proxy.GetT(t, "/version", nil); got.Status != http.StatusOK {
		t.Errorf("after a restart: %d %s", got.Status, got.Body)
	}
	object := cluster.Request{Method: http.MethodPost, Target: "/api/v1/namespaces/default/configmaps", Body: `{"metadata":{"generateName":"after-"}}`}
	if got := proxy.AskT(t, object.With("Content-Type", "application/json")); got.Status != http.StatusCreated {
		t.Errorf("after a restart: %d %s", got.Status, got.Body)
	}
	cluster.Eventually(t, "the log tells of the outage in two lines", func() bool {
		log := w.Proxy.Log()
		lost, back := strings.Index(log, `"msg":"upstream is lost"`), strings.Index(log, `"msg":"upstream is back"`)
		return lost >= 0 && back > lost && strings.Count(log, `"msg":"upstream is lost"`) == strings.Count(log, `"msg":"upstream is back"`)
	})
	cluster.Eventually(t, "the metrics tell that it is over", func() bool {
		return w.Proxy.MetricsT(t).Sum("watchproxy_upstream_server_usable") == 1
	})
}

// whileAway sends requests that the cache can answer, and requests that only the apiserver could
// answer.
func whileAway(t *testing.T, w *clients.World) {
	t.Helper()
	proxy := w.Endpoints(t)[1]
	for _, target := range []string{
		"/api/v1/configmaps?resourceVersion=0",
		"/api/v1/namespaces/" + crowded + "/configmaps?resourceVersion=0&labelSelector=colour%3Dred",
		"/api/v1/namespaces/" + crowded + "/configmaps/witness?resourceVersion=0",
	} {
		began := time.Now()
		if got := proxy.GetT(t, target, nil); got.Status != http.StatusOK || got.Header.Get("Warning") != "" && !strings.Contains(got.Header.Get("Warning"), "has not reached") {
			t.Errorf("%s: %d %s", target, got.Status, got.Body)
		}
		const soon = 2 * time.Second
		if took := time.Since(began); took > soon {
			t.Errorf("%s took %v", target, took)
		}
	}
	for _, target := range []string{
		"/version",
		"/api/v1/configmaps",
		"/api/v1/configmaps?watch=1",
		"/api/v1/namespaces/" + crowded + "/configmaps/witness",
		"/apis/apps/v1/deployments?resourceVersion=0", // no client has requested these before
		"/api/v1/secrets?resourceVersion=0",
	} {
		began := time.Now()
		got := proxy.GetT(t, target, nil)
		var status metav1.Status
		if err := json.Unmarshal(got.Body, &status); err != nil {
			t.Errorf("%s: %v in %s", target, err, got.Body)
		}
		if got.Status != http.StatusServiceUnavailable || status.Kind != "Status" || status.Code != http.StatusServiceUnavailable ||
			status.Reason != metav1.StatusReasonServiceUnavailable || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s %v", target, got.Status, got.Body, got.Header)
		}
		const soon = 3 * time.Second
		if took := time.Since(began); took > soon {
			t.Errorf("%s failed after %v", target, took)
		}
	}
	cluster.Eventually(t, "the metrics tell of the outage", func() bool {
		now := w.Proxy.MetricsT(t)
		return now.Sum("watchproxy_upstream_server_usable") == 0 && now.Sum("rest_client_requests_total", `code="<error>"`) > 0
	})
	if status, _ := clients.TryGet(t, w.Proxy.AdminURL+"/readyz"); status != http.StatusOK {
		t.Errorf("/readyz is %d", status)
	}
	if body := clients.Get(t, w.Proxy.AdminURL+"/status"); !strings.Contains(string(body), `"resource": "configmaps"`) {
		t.Errorf("/status: %s", body)
	}
}

func start(t *testing.T, s *cluster.APIServer) {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
