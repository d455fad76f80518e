package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// seed makes the objects that read-only rows use. They never change afterwards. Half of them exist
// before the proxy follows their collection; the others are created and changed after that.
func seed(ctx context.Context) error {
	for _, s := range []func(context.Context) error{createFirst, startFeeds, createRest, startFeeds} {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// old is a resourceVersion from before the start of all the proxy's feeds.
var old uint64

// seedNamespaces have different orders as names and as parts of keys: as keys, "a-b/" comes before
// "a/", which comes before "a0/".
var seedNamespaces = []string{"a", "a-b", "a0", "many"}

// createNamespaces is the first step, because the roles of -rbac may belong to these namespaces.
func createNamespaces(ctx context.Context) error {
	for _, name := range seedNamespaces {
		made, err := suite.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if namespaces.now, err = strconv.ParseUint(made.ResourceVersion, 10, 64); err != nil {
			return err
		}
	}
	return nil
}

func create(ctx context.Context, objects ...object) error {
	for _, o := range objects {
		rv, err := o.create(ctx)
		if err != nil {
			return err
		}
		o.of.now = max(o.of.now, rv)
	}
	return nil
}

// definition returns a CRD whose schema accepts anything.
func definition(kind, plural, scope, versions string) string {
	return fmt.Sprintf(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"%s.example.com"},
		"spec":{"group":"example.com","scope":%q,"names":{"kind":%q,"plural":%q,"singular":%q},"versions":[%s]}}`,
		plural, scope, kind, plural, strings.ToLower(kind), versions)
}

// version returns one version of a CRD. Its description makes the schemas of versions differ,
// because the apiserver refuses selectable fields if all schemas are the same.
func version(name string, storage bool, more string) string {
	return fmt.Sprintf(`{"name":%[1]q,"served":true,"storage":%[2]t%[3]s,"schema":{"openAPIV3Schema":{"type":"object","description":%[1]q,
		"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"color":{"type":"string"}}}},
		"x-kubernetes-preserve-unknown-fields":true}}}`, name, storage, more)
}

func defineCustom(ctx context.Context) error {
	for _, crd := range []string{
		definition("Widget", "widgets", "Namespaced", strings.Join([]string{
			version("v1", true, `,"selectableFields":[{"jsonPath":".spec.color"}]`),
			version("v2", false, ""),
			version("v1alpha1", false, `,"deprecated":true,"deprecationWarning":"example.com/v1alpha1 is \"old\", use v1"`),
		}, ",")),
		definition("Planet", "planets", "Cluster", version("v1", true, `,"additionalPrinterColumns":[{"name":"Size","type":"string","jsonPath":".spec.size"}]`)),
	} {
		if _, err := write(ctx, http.MethodPost, definitions, crd); err != nil {
			return err
		}
	}
	for _, c := range []*collection{widgets, widgetsV2, widgetsAlpha, planets} {
		if _, err := eventually(ctx, apiserver, get(c.all()), http.StatusOK); err != nil {
			return err
		}
	}
	return nil
}

// eventually repeats a request until the response has the given status.
func eventually(ctx context.Context, e *cluster.Endpoint, r request, status int) (got reply, err error) {
	for was := 0; ; was = got.Status {
		if got, err = e.Ask(ctx, r); err != nil {
			return got, fmt.Errorf("answered %d before: %w", was, err)
		}
		if got.Status == status {
			return got, nil
		}
		cluster.Pause(ctx, 50*time.Millisecond)
	}
}

// await repeats a request to the apiserver until the response has the given status.
func await(t *testing.T, r request, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	defer cancel()
	if _, err := eventually(ctx, apiserver, r, status); err != nil {
		t.Fatal(err)
	}
}

// writeT is write, but fails the test on error.
func writeT(t *testing.T, method, path, body string) {
	t.Helper()
	if _, err := write(t.Context(), method, path, body); err != nil {
		t.Fatal(err)
	}
}

// startFeeds starts the proxy's feeds of all collections.
func startFeeds(ctx context.Context) error {
	for _, c := range collections {
		if err := c.follow(ctx); err != nil {
			return err
		}
	}
	return nil
}

// kept are the Accept headers for the forms that caches keep. Custom resources have no protobuf.
var kept = []string{"application/json", "application/vnd.kubernetes.protobuf,application/json", table}

// follow starts the proxy's feeds of a collection, and waits until they answer with a state that
// includes the last write.
func (c *collection) follow(ctx context.Context) error {
	for _, part := range c.parts() {
		if err := c.reach(ctx, part, c.now, c.source(cache)); err != nil {
			return err
		}
	}
	return nil
}

// reach waits until both servers have answered a list of a part with a state that is not older than
// rv, in all forms that caches keep, and the proxy from the given source. A cache of events cannot
// prove that it is up to date, so the proxy forwards such a list while the cache's stream is late.
func (c *collection) reach(ctx context.Context, part string, rv uint64, due source) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.Limit)
	defer cancel()
	for _, accept := range kept {
		r := get(fmt.Sprintf("%sresourceVersionMatch=NotOlderThan&resourceVersion=%d", part, rv)).With("Accept", accept)
		if _, err := eventually(ctx, apiserver, r, http.StatusOK); err != nil {
			return err
		}
		due := inForm(r, due)
		for from := source(""); from == "" || from != due && due != anywhere; {
			got, err := eventually(ctx, proxied, r, http.StatusOK)
			if err != nil {
				return fmt.Errorf("from the %s: %w", due, err)
			}
			if from, err = answers.of(ctx, got.Header); err != nil {
				return err
			}
		}
	}
	return nil
}

func labelled(pairs ...string) map[string]any { return under("labels", pairs) }

func data(pairs ...string) map[string]any { return under("data", pairs) }

func under(key string, pairs []string) map[string]any {
	m := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		m[pair[0]] = pair[1]
	}
	return map[string]any{key: m}
}

func podSpec(node string) map[string]any {
	spec := map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}
	if node != "" {
		spec["nodeName"] = node
	}
	return map[string]any{"spec": spec}
}

// about returns the fields of an event about a pod, with the names of the collection's group.
func (c *collection) about(namespace, pod string) map[string]any {
	reference := map[string]any{"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": pod, "fieldPath": "spec.containers{c}"}
	if c == newEvents {
		return map[string]any{
			"regarding": reference, "note": awkward, "reason": "Seen", "action": "Look", "type": "Normal",
			"eventTime": "2026-01-02T03:04:05.678900Z", "reportingController": "example.com/watcher", "reportingInstance": "watcher-1",
		}
	}
	return map[string]any{
		"involvedObject": reference, "message": awkward, "reason": "Started", "type": "Normal", "count": 2,
		"source": map[string]any{"component": "kubelet", "host": "n1"}, "firstTimestamp": "2026-01-02T03:04:05Z",
	}
}

const awkward = "<a href=\"x\">Größe &amp; 日本語 🜁\u2028\u2029 'tick' `back` \\n \t\n\r </a>"

func createFirst(ctx context.Context) error {
	objects := []object{
		{of: configMaps, namespace: "a", name: "plain", fields: data("k", "v")},
		{of: configMaps, namespace: "a", name: "escapes", fields: data("text", awkward, "empty", "")},
		{of: configMaps, namespace: "a", name: "large", fields: data("text", strings.Repeat("0123456789abcde\n", 1<<14))},
		{of: configMaps, namespace: "a", name: "x.1"},
		{of: configMaps, namespace: "a", name: "x-1"},
		{of: configMaps, namespace: "a-b", name: "plain", fields: data("k", "other")},
		{of: configMaps, namespace: "a0", name: "control", fields: data("text", "\x00\x01\b\f\x1f\x7f\u0085\ufeff\ufffd")}, // YAML cannot represent it
		{of: pods, namespace: "a", name: "web-1", meta: labelled("app", "web", "tier", "front", "size", "5"), fields: podSpec("n1")},
		{of: pods, namespace: "a", name: "web-2", meta: labelled("app", "web", "tier", "back", "size", "10"), fields: podSpec("n2")},
		{of: pods, namespace: "a", name: "bare", fields: podSpec("")},
		{of: pods, namespace: "a-b", name: "web-1", meta: labelled("app", "web", "empty", ""), fields: podSpec("n1")},
		{of: nodes, name: "n1", meta: labelled("zone", "west")},
		{of: nodes, name: "n2", fields: map[string]any{"spec": map[string]any{"unschedulable": true}}},
		{of: leases, namespace: "a", name: "leader", fields: map[string]any{"spec": map[string]any{
			"holderIdentity": awkward, "leaseDurationSeconds": 40, "renewTime": "2026-01-02T03:04:05.678900Z",
		}}},
		{of: endpoints, namespace: "a", name: "backends", fields: map[string]any{"subsets": []any{map[string]any{
			"addresses": []any{map[string]any{"ip": "10.1.2.3"}}, "ports": []any{map[string]any{"port": 80}},
		}}}},
		{of: widgets, namespace: "a", name: "numbers", meta: labelled("app", "web"), fields: numbers},
		{of: planets, name: "earth", fields: map[string]any{"spec": map[string]any{"size": "12756 km", "text": awkward}}},
		{of: coreEvents, namespace: "a", name: "started", meta: labelled("app", "web"), fields: coreEvents.about("a", "web-1")},
		{of: coreEvents, namespace: "a", name: "killed", meta: labelled("app", "db"), fields: coreEvents.about("a", "db-1")},
		{of: newEvents, namespace: "a-b", name: "started", meta: labelled("app", "web"), fields: newEvents.about("a-b", "web-1")},
	}
	if err := create(ctx, objects...); err != nil {
		return err
	}
	old = planets.now
	objects = nil
	for i := range 140 {
		parity := []string{"even", "odd"}[i%2]
		objects = append(objects, object{of: configMaps, namespace: "many", name: fmt.Sprintf("c-%03d", i), meta: labelled("parity", parity)})
	}
	for i := range 20 {
		objects = append(objects, object{of: widgets, namespace: "many", name: fmt.Sprintf("w-%03d", i)})
	}
	return create(ctx, objects...)
}

// numbers are sent to the apiserver exactly as written here. The apiserver decides how to store
// them.
var numbers = map[string]any{
	"spec": json.RawMessage(`{"color":"red","exact":9007199254740993,"beyond":18446744073709551616,"tenth":0.1,"large":1e21,"small":1e-7,
		"whole":1.0,"trailing":1.50,"negative":-0.0,"text":"<>&\u2028","null":null,"deep":[[[{"kind":"Pod","metadata":{"resourceVersion":"1"}}]]],
		"metadata":{"name":"other","namespace":"b","resourceVersion":"5","labels":{"app":"db"}}}`),
	// Top-level keys that sort before and after metadata.
	"a\"quote": "x", "labels": map[string]string{"app": "db"}, "resourceVersion": "77", "zeta": 1,
}

// createRest creates and changes objects while the proxy follows their collections.
func createRest(ctx context.Context) error {
	again := object{of: configMaps, namespace: "a", name: "recreated", fields: data("life", "first")}
	fleeting := []object{
		again,
		{of: pods, namespace: "a0", name: "fleeting", meta: labelled("app", "web"), fields: podSpec("n1")},
		{of: nodes, name: "fleeting"},
		{of: leases, namespace: "a0", name: "fleeting"},
		{of: endpoints, namespace: "a0", name: "fleeting"},
		{of: widgets, namespace: "a0", name: "fleeting"},
		{of: planets, name: "fleeting"},
		{of: coreEvents, namespace: "a0", name: "fleeting", fields: coreEvents.about("a0", "fleeting")},
	}
	if err := create(ctx, append(fleeting, object{of: namespaces, name: "early"})...); err != nil {
		return err
	}
	namespaces.past = namespaces.now
	for _, o := range fleeting {
		o.of.past = o.of.now
		if err := o.remove(ctx); err != nil {
			return err
		}
	}
	again.fields = data("life", "second")
	err := create(ctx,
		again,
		object{of: configMaps, namespace: "a", name: "x"},
		object{of: configMaps, namespace: "a", name: "x0"},
		object{of: configMaps, namespace: "a0", name: "plain", fields: data("k", "third")},
		object{of: configMaps, namespace: "a", name: "resembling", meta: map[string]any{
			"labels":      map[string]string{"name": "other", "namespace": "b", "resourceVersion": "7", "uid": "none", "labels": "none"},
			"annotations": map[string]string{"resourceVersion": "8", "kind": "Status", "metadata": `{"resourceVersion":"9"}`, "k8s.io/initial-events-end": "true"},
		}, fields: data("metadata", `"metadata":{"name":"other","resourceVersion":"10"}`)},
		object{of: configMaps, namespace: "a", name: "binary", fields: map[string]any{"binaryData": map[string]any{"b": []byte{0, 255, 60, 62}}, "immutable": true}},
		object{of: pods, namespace: "a", name: "db-1", meta: labelled("app", "db", "size", "7", "example.com/long.key_name", "Mixed_Value.1"), fields: podSpec("n1")},
		object{of: pods, namespace: "a0", name: "web-1", meta: labelled("app", "web", "size", "not-a-number"), fields: podSpec("")},
		object{of: nodes, name: "n3", meta: labelled("zone", "east")},
		object{of: leases, namespace: "a-b", name: "leader"},
		object{of: endpoints, namespace: "a-b", name: "backends"},
		object{of: widgets, namespace: "a-b", name: "numbers", fields: numbers},
		object{of: planets, name: "mars", meta: labelled("moons", "2")},
		object{of: namespaces, name: "late", meta: labelled("app", "web")},
		object{of: coreEvents, namespace: "a0", name: "started", meta: labelled("app", "web"), fields: coreEvents.about("a0", "web-1")},
		object{of: newEvents, namespace: "a", name: "scheduled", meta: labelled("app", "web"), fields: newEvents.about("a", "web-2")},
	)
	if err != nil {
		return err
	}
	for _, o := range []object{
		{of: configMaps, namespace: "a", name: "plain"},
		{of: pods, namespace: "a", name: "web-2"},
		{of: nodes, name: "n1"},
		{of: namespaces, name: "a"},
		{of: widgets, namespace: "a", name: "numbers"},
		{of: planets, name: "earth"},
		{of: coreEvents, namespace: "a", name: "started"},
	} {
		rv, err := o.patch(ctx, `{"metadata":{"annotations":{"changed":"once"},"labels":{"changed":"yes"}}}`)
		if err != nil {
			return err
		}
		o.of.now = max(o.of.now, rv)
	}
	for _, c := range []*collection{widgetsV2, widgetsAlpha} {
		c.past, c.now = widgets.past, widgets.now
	}
	newEvents.past, newEvents.now = coreEvents.past, coreEvents.now
	return nil
}
