package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/config"
)

// documentsOf are upstream's documents, by path, in YAML. A number is a status code.
var documentsOf = map[string]string{
	"/api":  `{versions: [v1]}`,
	"/apis": `{groups: [` + group("apps", "v1") + `, ` + group("autoscaling", "v1", "v2") + `, ` + group("example.com", "v1") + `, ` + group("down.example.com", "v1") + `]}`,

	"/api/v1":                   resources("v1", "pods: Pod", "pods/log: Pod", "nodes: Node", "secrets: Secret"),
	"/apis/apps/v1":             resources("apps/v1", "deployments: Deployment"),
	"/apis/autoscaling/v1":      resources("autoscaling/v1", "scalers: Scaler"),
	"/apis/autoscaling/v2":      resources("autoscaling/v2", "scalers: Scaler"),
	"/apis/example.com/v1":      resources("example.com/v1", "widgets: Widget", "bare: Bare"),
	"/apis/down.example.com/v1": "503",

	"/openapi/v3": `{paths: {` + strings.Join([]string{
		`api/v1: {serverRelativeURL: "/openapi/v3/api/v1?hash=1"}`, "apis/autoscaling/v1: {serverRelativeURL: /openapi/v3/a1}",
		"apis/autoscaling/v2: {serverRelativeURL: /openapi/v3/a2}", "apis/example.com/v1: {serverRelativeURL: /openapi/v3/e1}",
	}, ", ") + `}}`,
	"/openapi/v3/api/v1": `
components:
  schemas:
    Meta:
      type: object
      properties:
        labels: {type: object, additionalProperties: {type: string, default: ""}}
        managedFields: {type: array, items: {allOf: [{$ref: "#/components/schemas/Managed"}], default: {}}}
        name: {type: string}
        creationTimestamp: {type: string}
        deletionTimestamp: {type: string}
        generation: {type: integer}
    Managed: {type: object, properties: {manager: {type: string}, fieldsV1: {type: object}}}
    IntOrString: {format: int-or-string, oneOf: [{type: integer}, {type: string}]}
    Pod:
      type: object
      properties:
        metadata: {allOf: [{$ref: "#/components/schemas/Meta"}], default: {}}
        spec: {type: object, properties: {nodeName: {type: string}, port: {$ref: "#/components/schemas/IntOrString"}, matrix: {type: array, items: {type: array, items: {type: string}}}}}
        status: {type: object, properties: {podIP: {type: string}, podIPs: {type: array, items: {type: object, properties: {ip: {type: string}}}}, phase: {type: string}}}
      x-kubernetes-group-version-kind: [{group: "", version: v1, kind: Pod}]
    Node:
      type: object
      properties:
        metadata: {allOf: [{$ref: "#/components/schemas/Meta"}]}
        spec: {type: object, properties: {podCIDR: {type: string}}}
      x-kubernetes-group-version-kind: [{group: "", version: v1, kind: Node}]
`,
	"/openapi/v3/a1": scaler("v1", "targetCPU"),
	"/openapi/v3/a2": scaler("v2", "metrics"),
	"/openapi/v3/e1": `
components:
  schemas:
    Widget:
      type: object
      properties:
        known: {type: object, properties: {a: {type: object, properties: {b: {type: string}}}}, x-kubernetes-preserve-unknown-fields: true}
        any: {description: anything}
        closed: {type: object, additionalProperties: false}
        open: {type: object, additionalProperties: true}
        circle: {$ref: "#/components/schemas/Circle"}
      x-kubernetes-group-version-kind: [{group: example.com, version: v1, kind: Widget}]
    Circle: {allOf: [{$ref: "#/components/schemas/Circle"}, {$ref: "#/components/schemas/Circle"}], properties: {to: {$ref: "#/components/schemas/Circle"}, x: {type: string}}}
`,
}

func group(name string, versions ...string) string {
	for i, v := range versions {
		versions[i] = "{groupVersion: " + name + "/" + v + ", version: " + v + "}"
	}
	return "{name: " + name + ", versions: [" + strings.Join(versions, ", ") + "]}"
}

func resources(groupVersion string, kinds ...string) string {
	for i, of := range kinds {
		name, kind, _ := strings.Cut(of, ": ")
		kinds[i] = "{name: " + name + ", kind: " + kind + "}"
	}
	return "{kind: APIResourceList, apiVersion: v1, groupVersion: " + groupVersion + ", resources: [" + strings.Join(kinds, ", ") + "]}"
}

func scaler(version, field string) string {
	return "components: {schemas: {Scaler: {type: object, properties: {" + field + ": {type: string}}, x-kubernetes-group-version-kind: [{group: autoscaling, version: " + version + ", kind: Scaler}]}}}"
}

// upstream serves documents. The other documents replace some of them.
func upstream(t *testing.T, other map[string]string) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, ok := other[req.URL.Path]
		if !ok {
			text, ok = documentsOf[req.URL.Path]
		}
		switch {
		case !ok:
			http.NotFound(w, req)
		case text == "403":
			http.Error(w, "no", http.StatusForbidden)
		case text == "503":
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			content, err := yaml.YAMLToJSON([]byte(text))
			if err != nil || !json.Valid(content) {
				t.Errorf("%s: %v", req.URL.Path, err)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(content)
		}
	}))
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &rest.Config{Host: server.URL, Transport: transport}
}

func TestPaths(t *testing.T) {
	rc := upstream(t, nil)
	for _, of := range []struct {
		resources, path, want string // no error if want is empty
	}{
		{"pods", "spec.nodeName", ""},
		{"pods", "status.podIPs", ""},
		{"pods", "status.podIPs[*].ip", ""},
		{"pods", "spec.matrix[*][*]", ""},
		{"pods", `metadata.labels["a.b/c"]`, ""},
		{"pods", "metadata.managedFields[*].fieldsV1.any.thing", ""},
		{"pods nodes", "spec.podCIDR", ""},
		{"scalers.autoscaling", "metrics", ""},
		{"scalers.autoscaling", "targetCPU", ""},
		{"widgets.example.com", "known.a.b", ""},
		{"widgets.example.com", "known.c[*].d", ""},
		{"widgets.example.com", "any[*].thing", ""},
		{"widgets.example.com", "open.thing", ""},
		{"widgets.example.com", "circle.to.to.x", ""},
		{"", "metadata.labels", ""},
		{"", "spec.anything[*]", ""},

		{"pods", "status.podIP2", "pods has no field status.podIP2; status has podIP, podIPs, phase"},
		{"pods", "status.PodIP", "pods has no field status.PodIP; status has podIP, podIPs, phase"},
		{"pods", "sepc.nodeName", "pods has no field sepc, but spec, status, metadata"},
		{"pods", "status.podIPs.ip", "pods: status.podIPs is a list: write status.podIPs[*].ip"},
		{"pods", "spec.matrix[*].x", "pods: spec.matrix[*] is a list: write spec.matrix[*][*].x"},
		{"pods", "spec[*].nodeName", "pods: spec is no list: write spec.nodeName"},
		{"pods", "spec.nodeName[*]", "pods: spec.nodeName is no list: write spec.nodeName"},
		{"pods", "metadata.labels[*]", "pods: metadata.labels is no list: write metadata.labels"},
		{"pods", "spec.nodeName.x", "pods: spec.nodeName has no fields: write spec.nodeName"},
		{"pods", "spec.port.x", "pods: spec.port has no fields: write spec.port"},
		{"pods", "metadata.labels.app.kubernetes.io/name", `pods: metadata.labels.app has no fields: write metadata.labels["app.kubernetes.io/name"]`},
		{"pods", "metadata.labels.a.b[*].c", `pods: metadata.labels.a has no fields: write metadata.labels["a.b"]`},
		{"pods", "metadata.managedFields[*].x", "pods has no field metadata.managedFields[*].x; metadata.managedFields[*] has manager, fieldsV1"},
		{"pods", "metadata.x", "pods has no field metadata.x; metadata has name, labels, generation, managedFields, creationTimestamp, …"},
		{"nodes pods", "status.podIP2", "pods has no field status.podIP2; status has podIP, podIPs, phase; the view's other resources have no such field, either"},
		{"scalers.autoscaling", "metric", "scalers.autoscaling has no field metric, but metrics"},
		{"widgets.example.com", "known.a.c", "widgets.example.com has no field known.a.c; known.a has b"},
		{"widgets.example.com", "closed.a", "widgets.example.com: closed has no fields: write closed"},
		{"widgets.example.com", "circle.to.y", "widgets.example.com has no field circle.to.y; circle.to has x, to"},
		{"", "metadata.label", "an object has no field metadata.label; metadata has labels, "},
		{"", "metadata.managedFields.manager", "an object: metadata.managedFields is a list: write metadata.managedFields[*].manager"},
	} {
		unread, err := Check(t.Context(), rc, []config.View{{Resources: strings.Fields(of.resources), Fields: []string{of.path}}})
		if unread != nil || (err == nil) != (of.want == "") || err != nil && !strings.HasPrefix(err.Error(), "views[0].fields[0]: "+of.want) {
			t.Errorf("%s of %s: %v, unread %v; want %s", of.path, of.resources, err, unread, of.want)
		}
	}
}

// One error contains all errors of all views, each with its place in the configuration.
func TestAllErrors(t *testing.T) {
	unread, err := Check(t.Context(), upstream(t, nil), []config.View{
		{Resources: []string{"pod", "pods", "deployments"}, Fields: []string{"spec.x", "spec["}},
		{Resources: []string{"nodes"}, Drop: []string{"spec.podCIDR", "spec.y"}},
		{Drop: []string{"metadata.z"}},
	})
	if err == nil || unread != nil {
		t.Fatalf("%v, unread %v", err, unread)
	}
	for _, want := range []string{
		"views[0].resources[0]: upstream has no resource pod; it has pods, nodes", "views[0].resources[2]: upstream has no resource deployments; it has deployments.apps, ",
		"views[0].fields[1]: position 5: ", "views[1].drop[1]: nodes has no field spec.y; spec has podCIDR", "views[2].drop[0]: an object has no field metadata.z; ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "spec.x") { // it may be a field of the missing resources
		t.Error(err)
	}
}

// Paths are right if the documents that would tell cannot be read. Other paths are checked.
func TestUnreadDocuments(t *testing.T) {
	views := func(resource string) []config.View {
		return []config.View{{Resources: []string{resource}, Fields: []string{"x", "y"}}, {Resources: []string{"nodes"}, Fields: []string{"spec.z"}}}
	}
	for _, of := range []struct{ resource, path, text, want, wrong string }{
		{"pods", "/api", "403", "read upstream's discovery: ", ""},
		{"pods", "/apis", "503", "read upstream's discovery: ", ""},
		{"pods", "/openapi/v3", "403", "read upstream's OpenAPI: ", ""},
		{"pods", "/openapi/v3", "paths: []", "read upstream's OpenAPI: ", ""},
		{"pods", "/openapi/v3/api/v1", "403", "read upstream's OpenAPI of v1: ", ""},
		{"pods", "/openapi/v3/api/v1", "components: []", "read upstream's OpenAPI of v1: ", ""},
		{"pods", "/openapi/v3", "paths: {}", "read upstream's OpenAPI of v1: there is no such document", ""},
		{"deployments.apps", "", "", "read upstream's OpenAPI of apps/v1: there is no such document", "spec.z"},
		{"gone.example.com", "", "", "views[0].resources[0]: upstream has no resource gone.example.com", "spec.z"},
		{"bare.example.com", "", "", "upstream's OpenAPI of example.com/v1 has no kind Bare", "spec.z"},
		{"scalers.autoscaling", "/openapi/v3/a1", "503", "read upstream's OpenAPI of autoscaling/v1: ", "spec.z"},
		{"things.down.example.com", "", "", "read upstream's discovery of down.example.com/v1: ", "spec.z"},
	} {
		unread, err := Check(t.Context(), upstream(t, map[string]string{of.path: of.text}), views(of.resource))
		if unread == nil || !strings.Contains(unread.Error(), of.want) {
			t.Errorf("%s, %s %s: unread %v, want %s", of.resource, of.path, of.text, unread, of.want)
		}
		if (err == nil) != (of.wrong == "") || err != nil && (!strings.Contains(err.Error(), of.wrong) || strings.Contains(err.Error(), "views[0]")) {
			t.Errorf("%s, %s %s: %v, want %s", of.resource, of.path, of.text, err, of.wrong)
		}
	}
}

type silent struct{}

func (silent) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func TestSilentUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		unread, err := Check(t.Context(), &rest.Config{Host: "http://upstream", Transport: silent{}}, []config.View{{Fields: []string{"x"}}})
		if took := time.Since(began); err != nil || unread == nil || unread.Error() != "read upstream's discovery: no answer within 10s" || took != timeout {
			t.Errorf("%v, unread %v, after %s", err, unread, took)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("signal"))
		if unread, err := Check(ctx, &rest.Config{Host: "http://upstream", Transport: silent{}}, nil); err != nil || unread == nil || !strings.HasSuffix(unread.Error(), ": signal") {
			t.Errorf("%v, unread %v", err, unread)
		}
	})
}
