package views

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// resource is one resource in one version.
type resource struct {
	number     int
	root       string // "/api/v1", "/apis/apps/v1"
	plural     string
	kind       string
	namespaced bool
	open       bool             // objects accept any field
	specimens  []map[string]any // objects to create
	views      []*view
}

// name is unique.
func (r *resource) name() string { return strings.TrimPrefix(r.root, "/") + "/" + r.plural }

// path is the path of the whole collection.
func (r *resource) path() string { return r.root + "/" + r.plural }

// in is the path of the collection in a namespace, or of the whole collection if the resource has
// no namespaces.
func (r *resource) in(namespace string) string {
	if !r.namespaced {
		return r.path()
	}
	return r.root + "/namespaces/" + namespace + "/" + r.plural
}

// pathOf is the path of an object.
func (r *resource) pathOf(o tree) string {
	return r.in(textAt(o, "metadata", "namespace")) + "/" + url.PathEscape(textAt(o, "metadata", "name"))
}

func (r *resource) apiVersion() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.root, "/apis/"), "/api/")
}

// configured is the name in the configuration of views.
func (r *resource) configured() string {
	group, _, hasGroup := strings.Cut(r.apiVersion(), "/")
	if !hasGroup {
		return r.plural
	}
	return r.plural + "." + group
}

// cached reports whether the proxy caches the resource. By default it keeps no secrets, and the
// aggregator serves APIServices outside of any of them.
func (r *resource) cached() bool { return r.plural != "secrets" && r.plural != "apiservices" }

// forwardsTables reports whether upstream answers the resource's Tables, because their rows depend
// on other objects, or have a duration or another age than that of the object.
func (r *resource) forwardsTables() bool {
	return slices.Contains([]string{
		"flowschemas", "storageclasses",
		"jobs", "cronjobs", "events", "certificatesigningrequests", "devicetaintrules", "resourcepoolstatusrequests",
	}, r.plural)
}

// namespace has the objects that all tests read and none changes.
const namespace = "views"

// leastResources is the number of resources that the tests need to be worth their name.
const leastResources = 60

// create creates objects of all resources.
func (w *world) create(tb testing.TB) {
	tb.Helper()
	for _, o := range documents(tb, "testdata/definitions.yaml") {
		if _, err := w.write(tb.Context(), http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", o); err != nil {
			tb.Fatal(err)
		}
	}
	for _, target := range []string{"v1/gauges", "v1/planets", "v2/widgets"} {
		cluster.Eventually(tb, target+" are served", func() bool {
			answer, err := w.api.Ask(tb.Context(), cluster.Get("/apis/example.com/"+target))
			return err == nil && answer.Status == http.StatusOK
		})
	}
	w.discover(tb)
	for _, o := range documents(tb, "../conformance/testdata/specimens.yaml", "../conformance/testdata/specimens-1.37.yaml", "testdata/objects.yaml") {
		i := slices.IndexFunc(w.all, func(r *resource) bool { return r.kind == o["kind"] && r.apiVersion() == o["apiVersion"] })
		if i >= 0 {
			w.all[i].specimens = append(w.all[i].specimens, o)
		}
	}
	pods := w.find(tb, "api/v1/pods")
	for i := range 3 {
		text, err := json.Marshal(workload.NewPod(i))
		if err != nil {
			tb.Fatal(err)
		}
		o := map[string]any{}
		if err := json.Unmarshal(text, &o); err != nil {
			tb.Fatal(err)
		}
		o["kind"], o["apiVersion"] = "Pod", "v1"
		pods.specimens = append(pods.specimens, o)
	}
	for _, name := range []string{namespace, "views-other"} {
		if err := w.createNamespace(tb.Context(), name); err != nil {
			tb.Fatal(err)
		}
	}
	w.forEach(tb, w.all, func(ctx context.Context, r *resource) (err error) {
		for i, s := range r.specimens {
			for _, of := range []string{namespace, "views-other"} {
				name := fmt.Sprintf("%s-%d", s["metadata"].(map[string]any)["name"], i)
				if !r.namespaced && of != namespace {
					name += "-other"
				}
				if r.plural == "ipaddresses" {
					name = fmt.Sprintf("192.0.2.%d", 100+len(of)) //nolint:mnd // any address
				}
				if r.plural == "servicecidrs" && of != namespace {
					continue // ranges must not overlap
				}
				err = errors.Join(err, w.createCopy(ctx, r, s, of, name, i))
			}
		}
		return err
	})
	// Upstream compresses only long answers.
	maps := w.find(tb, "api/v1/configmaps")
	large := map[string]any{"data": map[string]any{"large.text": strings.Repeat("0123456789abcde\n", 8<<10)}}
	if err := w.createCopy(tb.Context(), maps, merged(maps.specimens[0], large), namespace, "large", 1); err != nil {
		tb.Fatal(err)
	}
}

func (w *world) createNamespace(ctx context.Context, name string) error {
	_, err := w.write(ctx, http.MethodPost, "/api/v1/namespaces", map[string]any{
		"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": name, "labels": map[string]any{"a.b/c": name}},
	})
	return err
}

// createCopy creates an object like a specimen, and writes its status as a controller would.
func (w *world) createCopy(ctx context.Context, r *resource, specimen map[string]any, namespace, name string, i int) error {
	text, err := json.Marshal(specimen)
	if err != nil {
		return err
	}
	o := map[string]any{}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "NAMESPACE", namespace)), &o); err != nil {
		return err
	}
	meta := map[string]any{
		"name":        name,
		"namespace":   namespace,
		"labels":      map[string]any{"views.example.com/number": fmt.Sprint(i), "parity": []string{"even", "odd"}[i%2]},
		"annotations": map[string]any{"views.example.com/empty": "", "plain": "a\"quote"},
	}
	if !r.namespaced {
		delete(meta, "namespace")
	}
	if i%2 == 1 {
		meta["ownerReferences"] = []any{
			map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "name": "o", "uid": "u", "controller": true},
			map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "name": "p", "uid": "v"},
		}
	}
	o = merged(o, map[string]any{"metadata": meta})
	if _, err := w.write(ctx, http.MethodPost, r.in(namespace), o); err != nil {
		return err
	}
	if o["status"] == nil || r.kind == "Planet" { // without a subresource
		return nil
	}
	_, err = w.write(ctx, http.MethodPatch, r.in(namespace)+"/"+url.PathEscape(name)+"/status", map[string]any{"status": o["status"]})
	return err
}

// patch gives some objects of each resource sentinels and further managed fields.
func (w *world) patch(tb testing.TB) {
	tb.Helper()
	const most = 6
	w.forEach(tb, w.all, func(ctx context.Context, r *resource) error {
		answer, err := ask(ctx, w.api, cluster.Get(r.path()))
		if err != nil {
			return err
		}
		whole, err := decode(answer.Body)
		if err != nil {
			return err
		}
		items := at(whole, "items").(list)
		if len(items) == 0 {
			return errors.New("there are no objects")
		}
		for i, o := range items[max(0, len(items)-most):] { // the last namespaces are the tests' own
			name := fmt.Sprintf("%sr%d-%d", sentinel, r.number, i)
			_, err := w.write(ctx, http.MethodPatch, r.pathOf(o)+"?fieldManager="+name+"-manager", map[string]any{"metadata": map[string]any{
				"annotations": map[string]any{name + ".key/dotted.name": name + "-annotation"},
				"labels":      map[string]any{"views.example.com/label": name + "-label"},
			}})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// discover finds all resources that can be listed and watched.
func (w *world) discover(tb testing.TB) {
	tb.Helper()
	roots := []string{"/api/v1"}
	for _, g := range gjson.GetBytes(w.mustT(tb, w.api, cluster.Get("/apis")).Body, "groups.#.versions|@flatten").Array() {
		roots = append(roots, "/apis/"+g.Get("groupVersion").Str)
	}
	for _, root := range roots {
		for _, r := range gjson.GetBytes(w.mustT(tb, w.api, cluster.Get(root)).Body, "resources").Array() {
			verbs := r.Get("verbs").String()
			if strings.Contains(verbs, `"list"`) && strings.Contains(verbs, `"watch"`) {
				w.all = append(w.all, &resource{
					number: len(w.all), root: root, plural: r.Get("name").Str, kind: r.Get("kind").Str,
					namespaced: r.Get("namespaced").Bool(), open: r.Get("name").Str == "gauges",
				})
			}
		}
	}
	if len(w.all) < leastResources {
		tb.Fatalf("%d resources can be listed", len(w.all))
	}
}

// documents reads objects from files. It fills in what the specimens of the differential suite
// leave open: certificate requests and timestamps.
func documents(tb testing.TB, files ...string) (all []map[string]any) {
	tb.Helper()
	key := cluster.NewKeyT(tb)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	authority, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	encoded := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	fill := strings.NewReplacer(
		"request: CSR", "request: "+base64.StdEncoding.EncodeToString(encoded("CERTIFICATE REQUEST", der)),
		"Request: DER", "Request: "+base64.StdEncoding.EncodeToString(der),
		"BUNDLE", strconv.Quote(string(encoded("CERTIFICATE", authority))),
		`hard: {pods: "5"}`, `hard: {pods: "500"}`, // tests create more
	)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		filled := workload.TimestampsT(tb, fill.Replace(string(text)))
		for text := range strings.SplitSeq(filled, "\n---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(text), &o); err != nil {
				tb.Fatal(err)
			}
			all = append(all, o)
		}
	}
	return all
}

// merged returns an object with further members, at any depth.
func merged(o, with map[string]any) map[string]any {
	all := maps.Clone(o)
	for key, value := range with {
		was, ok := all[key].(map[string]any)
		if now, isMap := value.(map[string]any); ok && isMap {
			value = merged(was, now)
		}
		all[key] = value
	}
	return all
}
