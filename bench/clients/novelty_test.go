package clients

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// newer is an apiserver that is newer than all types that are compiled into the proxy. It serves
// one ConfigMap with unknown fields.
type newer struct{ json, message []byte }

func newNewer(t *testing.T) *newer {
	t.Helper()
	c := corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "web"}},
		Data:       map[string]string{"k": "v"},
	}
	message, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	message = protowire.AppendString(protowire.AppendTag(message, 901, protowire.BytesType), "a new field")
	message = protowire.AppendVarint(protowire.AppendTag(message, 902, protowire.VarintType), 12345)
	body, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return &newer{
		json:    append(bytes.TrimSuffix(body, []byte("}")), `,"novelty":{"fields":[1,2.50,"\u003cx\u003e"],"z":null,"a":{}}}`...),
		message: message,
	}
}

func envelope(kind string, message []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: message}
	b, err := u.Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return append([]byte("k8s\x00"), b...)
}

// ServeHTTP answers discovery, and the probes and watches of feeds. It does not support forwarded
// requests.
func (n *newer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	proto := strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/version":
		io.WriteString(w, `{"gitVersion":"v9.99.0"}`)
	case r.URL.Path == "/api/v1":
		io.WriteString(w, `{"kind":"APIResourceList","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["list","watch"]}]}`)
	case r.Header.Get("User-Agent") != "watchproxy":
		http.Error(w, "forwarded", http.StatusTeapot)
	case r.URL.Query().Get("watch") != "":
		n.watch(w, r, proto)
	case proto:
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		list := corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		message, _ := list.Marshal() // marshalling a known type cannot fail
		w.Write(envelope("ConfigMapList", message))
	default:
		io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
	}
}

// watch sends the object and the end of the initial state, and then nothing more.
func (n *newer) watch(w http.ResponseWriter, r *http.Request, proto bool) {
	end := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{"k8s.io/initial-events-end": "true"}}}
	if proto {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		message, _ := end.Marshal() // marshalling a known type cannot fail
		w.Write(frame("ADDED", envelope("ConfigMap", n.message)))
		w.Write(frame("BOOKMARK", envelope("ConfigMap", message)))
	} else {
		body, _ := json.Marshal(end) // marshalling a known type cannot fail
		const typeMeta = `{"kind":"ConfigMap","apiVersion":"v1",`
		fmt.Fprintf(w, `{"type":"ADDED","object":%s%s}`+"\n", typeMeta, n.json[1:])
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":%s%s}`+"\n", typeMeta, body[1:])
	}
	http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func frame(kind string, object []byte) []byte {
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}
	b, err := e.Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// Fields that the proxy's types lack reach clients unchanged, in both encodings.
func TestUnknownFieldsSurvive(t *testing.T) {
	n := newNewer(t)
	upstream := httptest.NewServer(n)
	t.Cleanup(upstream.Close)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: cluster.KubeconfigT(t, upstream.URL, nil, ""), Settings: patient, TLS: true})
	e := p.EndpointT(t)
	const protobuf = "application/vnd.kubernetes.protobuf"
	single := append([]byte(`{"kind":"ConfigMap","apiVersion":"v1",`), n.json[1:]...)
	for name, tc := range map[string]struct {
		target, accept string
		want           []byte
	}{
		"get in JSON":       {"/api/v1/namespaces/a/configmaps/one?resourceVersion=0", "application/json", append(bytes.Clone(single), '\n')},
		"get in protobuf":   {"/api/v1/namespaces/a/configmaps/one?resourceVersion=0", protobuf, envelope("ConfigMap", n.message)},
		"list in JSON":      {"/api/v1/configmaps?resourceVersion=0", "application/json", n.json},
		"list in protobuf":  {"/api/v1/configmaps?resourceVersion=0", protobuf, n.message},
		"watch in JSON":     {"/api/v1/configmaps?resourceVersion=0&watch=1", "application/json", single},
		"watch in protobuf": {"/api/v1/configmaps?resourceVersion=0&watch=1", protobuf, frame("ADDED", envelope("ConfigMap", n.message))},
	} {
		got := beginning(t, e, cluster.Request{Target: tc.target, Header: http.Header{"Accept": {tc.accept}}}, tc.want)
		if !bytes.Contains(got, tc.want) || strings.HasPrefix(name, "get") && !bytes.Equal(got, tc.want) {
			t.Errorf("%s:\n%q does not hold\n%q", name, got, tc.want)
		}
	}
}

// beginning reads the body of an answer with code 200 up to a text.
func beginning(t *testing.T, e *cluster.Endpoint, r cluster.Request, text []byte) (read []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	defer cancel()
	resp, err := e.Open(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for part := make([]byte, 4<<10); !bytes.Contains(read, text) && err == nil; {
		var n int
		n, err = resp.Body.Read(part)
		read = append(read, part[:n]...)
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %d %s", r.Target, resp.StatusCode, read)
	}
	return read
}
