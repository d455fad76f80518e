package wire

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// configMap returns a configmap in JSON, with size bytes of data.
func configMap(name string, size int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"key":%q}}`, name, strings.Repeat("x", size))
}

// message returns the error message in an answer, or the size of the stored data.
func message(a cluster.Answer) string {
	var got struct {
		Message string
		Data    map[string]string
	}
	if err := json.Unmarshal(a.Body, &got); err != nil {
		return fmt.Sprintf("%d: %.200s", a.Status, a.Body)
	}
	return fmt.Sprintf("%d: %s %d", a.Status, got.Message, len(got.Data["key"]))
}

// Requests with bodies of any size, with a known length or in chunks, have the same result through
// the proxy. So does the next request on the same connection.
func TestRequestBodies(t *testing.T) {
	w := sharedWorld(t)
	outside, through := w.Namespace(t, "bodies-o"), w.Namespace(t, "bodies-t")
	endpoints := w.Endpoints(t)
	const mega = 1 << 20
	for i, size := range []int{0, 64<<10 - 1, 64 << 10, 300_000, mega, mega + 1, 3*mega - 200, 3*mega + 1, 20 * mega} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d,chunked=%t", size, chunked), func(t *testing.T) {
				body := configMap(fmt.Sprintf("object-%d-%t", i, chunked), size)
				var said [2]string
				for j, ns := range []string{outside, through} {
					got := endpoints[j].AskT(t, creating(ns, body, chunked))
					said[j] = strings.ReplaceAll(message(got), ns, "NAMESPACE")
					if after := endpoints[j].GetT(t, "/version", nil); after.Status != http.StatusOK {
						t.Errorf("%s: then /version is %d", endpoints[j].Name, after.Status)
					}
				}
				if said[0] != said[1] {
					t.Errorf("\napiserver %s\nproxy     %s", said[0], said[1])
				}
				if want := map[bool]string{true: "201", false: "4"}[size <= mega]; !strings.HasPrefix(said[0], want) {
					t.Errorf("the apiserver says %s", said[0])
				}
			})
		}
	}
}

// creating returns a request that creates a configmap.
func creating(ns, body string, chunked bool) cluster.Request {
	r := cluster.Request{Method: http.MethodPost, Target: "/api/v1/namespaces/" + ns + "/configmaps", Body: body, Chunked: chunked}
	return r.With("Content-Type", "application/json")
}
