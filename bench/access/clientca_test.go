package access

import (
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A client CA of the proxy's own replaces the cluster's CA. The apiserver authorizes users with
// certificates from this CA, and forwarded requests act as the same users. Users with certificates
// from the cluster's CA are unknown to this proxy.
func TestClientCAFile(t *testing.T) {
	w := sharedWorld(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.foreign.Certificate.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	f := w.startFront(t, w.api.URL, proxyUser, fmt.Sprintf("authentication: {x509: {clientCAFile: %q}}\n", file))
	const list = "/api/v1/namespaces/" + teamA + "/pods"
	foreign := func(user string, groups ...string) *caller {
		return &caller{name: "foreign " + user, cert: w.foreign.SignT(t, time.Hour, user, groups...)}
	}
	for _, target := range []string{list, list + "?resourceVersion=0", list + "?limit=1", list + "/one"} {
		r := request{target: target}
		for theirs, ours := range map[*caller]*caller{
			w.callers["certificate"]:      foreign("carla", certified),
			w.callers["certified nobody"]: foreign("nobody"),
		} {
			want, got := w.server.must(t, theirs, r), f.must(t, ours, r)
			if err := compare(want, got); err != nil {
				t.Errorf("%s: %s: %v", ours.name, target, err)
			}
			if got := f.must(t, theirs, r); got.status != unknown {
				t.Errorf("%s, whom the cluster's authority names: %s: %d", theirs.name, target, got.status)
			}
		}
	}
	w.audit.SkipT(t)
	carla := foreign("carla", certified)
	first, direct := request{target: list + "/one"}.named()
	second, forwarded := request{target: list + "/one"}.named()
	w.server.must(t, w.callers["certificate"], first)
	f.must(t, carla, second)
	want, got := w.recorded(t, direct).Effective(), w.recorded(t, forwarded).Effective()
	if want.Username != got.Username || fmt.Sprint(want.Groups) != fmt.Sprint(got.Groups) {
		t.Errorf("it acts as %s instead of %s", identity(got), identity(want))
	}
}

// listVersion matches a list's resourceVersion, which may differ between two caches.
var listVersion = regexp.MustCompile(`"metadata":\{"resourceVersion":"\d+"\},`)

// Through the proxy, administrators with a certificate or a token can use kubectl --as like at the
// apiserver, for cached reads, forwarded reads and writes.
func TestKubectlAs(t *testing.T) {
	w := sharedWorld(t)
	f := closedFront(t)
	var certificate clientcmdapi.AuthInfo
	certificate.ClientCertificateData, certificate.ClientKeyData = cluster.PEM(w.ca.SignT(t, time.Hour, "admin", "system:masters"))
	for name, user := range map[string]clientcmdapi.AuthInfo{"certificate": certificate, "token": {Token: w.api.Token}} {
		t.Run(name, func(t *testing.T) { w.compareKubectlAs(t, f, user) })
	}
}

func (w *world) compareKubectlAs(t *testing.T, f *front, user clientcmdapi.AuthInfo) {
	t.Helper()
	const cached = "get --raw /api/v1/namespaces/" + teamA + "/pods?resourceVersion=0 --as "
	run := func(url string, ca []byte, args ...string) string {
		home := t.TempDir()
		if err := cluster.WriteKubeconfig(filepath.Join(home, "config"), url, ca, user); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), cluster.KubectlT(t), append([]string{"--namespace", teamA, "--kubeconfig", filepath.Join(home, "config")}, args...)...)
		cmd.Env = []string{"HOME=" + home}
		out, err := cmd.CombinedOutput() // kubectl's error for a refusal is part of the outcome
		return fmt.Sprintf("%s%v", listVersion.ReplaceAll(out, nil), err)
	}
	for _, args := range []string{
		"get pods -o name",
		"get pods -o name --as reader",
		"get pods -o name --as nobody",
		cached + "reader",
		cached + "nobody",
		cached + "nobody --as-group " + targetGroup + " --as-uid 7",
		cached + robotUser,
		"get pods -o name --as one",
		"get pod one -o name --as system:serviceaccount:" + teamA + ":robot",
		"get nodes -o name --as nobody --as-group system:masters",
		"auth whoami -o jsonpath={.status.userInfo} --as somebody --as-group g1 --as-group g2 --as-uid 7",
		"create configmap as-admin --as nobody",
		"create configmap as-admin --dry-run=server -o name",
		"get pods -o name --as-group g1",
	} {
		words := strings.Fields(args)
		fromCache := func() int { return 0 }
		if strings.HasPrefix(args, cached) {
			fromCache = func() int { return f.fromCache(t) }
		}
		before := fromCache()
		var want string
		var running sync.WaitGroup
		running.Go(func() { want = run(w.server.url, w.api.CA, words...) })
		got := run(f.url, f.proxy.CA, words...)
		running.Wait()
		if strings.HasPrefix(args, cached) && strings.HasPrefix(want, "{") && fromCache() == before {
			t.Errorf("kubectl %s: not from the cache", args)
		}
		want = strings.ReplaceAll(want, w.server.url, f.url)
		if got != want {
			t.Errorf("kubectl %s:\n%s\ninstead of\n%s", args, got, want)
		}
		t.Logf("kubectl %s: %.80q", args, want)
	}
}
