package access

import (
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
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
