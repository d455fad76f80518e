package conformance

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// selectables are the selectable fields of a collection, and objects that differ in these fields.
type selectables struct {
	of      *collection
	fields  []field
	objects []specimen
	// foreign are labels that this collection does not support, and refusal is the apiserver's
	// error for them.
	foreign []string
	refusal string
}

// field is a selectable field.
type field struct {
	label string
	value string // value in some objects, but not in all; empty if no object has a value
	unset string // value in objects that do not set the field
}

// specimen is an object to select.
type specimen struct {
	name   string
	fields map[string]any
	then   func(context.Context, object) (uint64, error) // the next write; may be nil
}

// status returns a function that patches an object's status as its controller would.
func status(patch string) func(context.Context, object) (uint64, error) {
	return func(ctx context.Context, o object) (uint64, error) { return o.patchStatus(ctx, patch) }
}

func spec(text string) map[string]any { return map[string]any{"spec": json.RawMessage(text)} }

var (
	services        = &collection{name: "services", root: "/api/v1", resource: "services", kind: "Service", namespaced: true}
	controllers     = &collection{name: "replicationcontrollers", root: "/api/v1", resource: "replicationcontrollers", kind: "ReplicationController", namespaced: true}
	jobs            = &collection{name: "jobs", root: "/apis/batch/v1", resource: "jobs", kind: "Job", namespaced: true}
	signingRequests = &collection{name: "certificatesigningrequests", root: "/apis/certificates.k8s.io/v1", resource: "certificatesigningrequests", kind: "CertificateSigningRequest"}
	trustBundles    = &collection{name: "clustertrustbundles", root: "/apis/certificates.k8s.io/v1beta1", resource: "clustertrustbundles", kind: "ClusterTrustBundle"}
	podCertificates = &collection{name: "podcertificaterequests", root: "/apis/certificates.k8s.io/v1beta1", resource: "podcertificaterequests", kind: "PodCertificateRequest", namespaced: true}
	resourceSlices  = &collection{name: "resourceslices", root: "/apis/resource.k8s.io/v1", resource: "resourceslices", kind: "ResourceSlice"}
	secrets         = &collection{name: "secrets", root: "/api/v1", resource: "secrets", kind: "Secret", namespaced: true, excluded: true}
)

const (
	unsupported = "field label not supported: %s"
	// unknown is the error of resources that have only the fields of metadata.
	unknown = `\"%s\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"`

	podOf      = `{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}`
	controller = `{"replicas":3,"selector":{"app":"x"},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}`
	job        = `{"completions":3,"template":{"spec":` + podOf + `}}`
)

// withBetas enables resources with their own selectable fields that are disabled by default.
var withBetas = []string{
	"--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true",
	"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true",
}

// withBetas134 is withBetas for kube-apiserver 1.34 and earlier.
var withBetas134 = []string{
	"--feature-gates=ClusterTrustBundle=true",
	"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
}

// builtin returns the selectable fields of built-in resources.
func builtin(t *testing.T, home string) []selectables {
	t.Helper()
	all := []selectables{
		{pods, []field{
			{"spec.nodeName", "n1", ""},
			{"spec.host", "n1", ""},
			{"spec.restartPolicy", "Never", "Always"},
			{"spec.schedulerName", "example", "default-scheduler"},
			{"spec.serviceAccountName", "robot", ""},
			{"spec.hostNetwork", "true", "false"},
			{"status.phase", "Running", "Pending"},
			{"status.podIP", "10.0.0.9", ""},
			{"status.podIPs", "", ""},
			{"status.nominatedNodeName", "n2", ""},
		}, []specimen{
			{"bare", podSpec(""), nil},
			{
				"said", spec(`{"nodeName":"n1","restartPolicy":"Never","schedulerName":"example","serviceAccountName":"robot","hostNetwork":true,
				"containers":[{"name":"c","image":"i"}]}`),
				status(`{"status":{"phase":"Running","podIP":"10.0.0.9","podIPs":[{"ip":"10.0.0.9"},{"ip":"fd00::9"}]}}`),
			},
			{
				"other", spec(`{"nodeName":"n2","restartPolicy":"OnFailure","hostNetwork":false,"containers":[{"name":"c","image":"i"}]}`),
				status(`{"status":{"phase":"Succeeded","podIPs":[{"ip":"fd00::8"}]}}`),
			},
			{"chosen", podSpec(""), status(`{"status":{"nominatedNodeName":"n2"}}`)},
		}, []string{"spec.priorityClassName", "status.hostIP", "status.podIPs.ip", "podIP", "spec.hostname"}, unsupported},

		{nodes, []field{{"spec.unschedulable", "true", "false"}}, []specimen{
			{"bare", nil, nil},
			{"said", spec(`{"unschedulable":true}`), nil},
			{"other", spec(`{"unschedulable":false}`), nil},
		}, []string{"metadata.namespace", "spec.podCIDR", "status.phase"}, unsupported},

		{namespaces, []field{{"status.phase", "Terminating", "Active"}}, []specimen{
			{"bare", nil, nil},
			{"said", nil, func(ctx context.Context, o object) (uint64, error) {
				return write(ctx, http.MethodDelete, o.path(), "")
			}},
		}, []string{"metadata.namespace", "name", "spec.finalizers"}, unsupported},

		{services, []field{{"spec.clusterIP", "None", ""}, {"spec.type", "ExternalName", "ClusterIP"}}, []specimen{
			{"bare", spec(`{"ports":[{"port":80}]}`), nil},
			{"said", spec(`{"type":"ExternalName","externalName":"example.com"}`), nil},
			{"other", spec(`{"clusterIP":"None","ports":[{"port":80}]}`), nil},
		}, []string{"spec.clusterIPs", "spec.externalName"}, unsupported},

		{controllers, []field{{"status.replicas", "2", "0"}}, []specimen{
			{"bare", spec(controller), nil},
			{"said", spec(controller), status(`{"status":{"replicas":2}}`)},
		}, []string{"spec.replicas", "status.readyReplicas"}, unsupported},

		{jobs, []field{{"status.successful", "2", "0"}}, []specimen{
			{"bare", spec(job), nil},
			{"said", spec(job), status(`{"status":{"succeeded":2}}`)},
		}, []string{"status.succeeded", "status.failed"}, `field label \"%s\" not supported for Job`},

		{coreEvents, []field{
			{"involvedObject.kind", "Node", ""},
			{"involvedObject.namespace", home, ""},
			{"involvedObject.name", "n 1", ""},
			{"involvedObject.uid", "u-1", ""},
			{"involvedObject.apiVersion", "example.com/v1", ""},
			{"involvedObject.resourceVersion", "77", ""},
			{"involvedObject.fieldPath", "spec.containers{a,b=c}", ""},
			{"reason", "Killing", ""},
			{"reportingComponent", "example.com/reporter", ""},
			{"source", "example", "example.com/reporter"},
			{"source", "example.com/reporter", ""},
			{"type", "Warning", ""},
		}, []specimen{
			{"bare", map[string]any{"involvedObject": map[string]any{"namespace": home}}, nil},
			{"said", map[string]any{"involvedObject": map[string]any{
				"kind": "Node", "namespace": home, "name": "n 1", "uid": "u-1", "apiVersion": "example.com/v1", "resourceVersion": "77",
				"fieldPath": "spec.containers{a,b=c}",
			}, "reason": "Killing", "source": map[string]any{"component": "example"}, "type": "Warning"}, nil},
			{"other", map[string]any{"involvedObject": map[string]any{"namespace": home}, "reportingComponent": "example.com/reporter", "type": "Normal"}, nil},
			{"both", map[string]any{
				"involvedObject": map[string]any{"namespace": home}, "reportingComponent": "example.com/reporter",
				"source": map[string]any{"component": "example"},
			}, nil},
		}, []string{"regarding.kind", "reportingController", "source.component", "count", "message"}, unsupported},

		{newEvents, []field{ // the same objects as coreEvents
			{"regarding.kind", "Node", ""},
			{"regarding.namespace", home, ""},
			{"regarding.name", "n 1", ""},
			{"regarding.uid", "u-1", ""},
			{"regarding.apiVersion", "example.com/v1", ""},
			{"regarding.resourceVersion", "77", ""},
			{"regarding.fieldPath", "spec.containers{a,b=c}", ""},
			{"reason", "Killing", ""},
			{"reportingController", "example.com/reporter", ""},
			{"type", "Warning", ""},
		}, nil, []string{"involvedObject.kind", "reportingComponent", "source", "deprecatedSource.component", "note"}, unsupported},

		{signingRequests, []field{{"spec.signerName", "example.com/said", "example.com/other"}}, []specimen{
			{"said", signingRequest(t, "example.com/said"), nil},
			{"other", signingRequest(t, "example.com/other"), nil},
		}, []string{"metadata.namespace", "spec.username"}, unsupported},

		{trustBundles, []field{{"spec.signerName", "example.com/said", ""}}, []specimen{
			{"bare", trustBundle(t, ""), nil},
			{"example.com:said:said", trustBundle(t, "example.com/said"), nil},
			{"example.com:other:other", trustBundle(t, "example.com/other"), nil},
		}, []string{"metadata.namespace", "spec.trustBundle"}, unsupported},

		{podCertificates, []field{
			{"spec.signerName", "example.com/said", "example.com/other"}, {"spec.podName", "said", "other"}, {"spec.nodeName", "n1", "n2"},
		}, []specimen{
			{"said", podCertificate(t, "example.com/said", "said", "n1"), nil},
			{"other", podCertificate(t, "example.com/other", "other", "n2"), nil},
		}, []string{"metadata.namespace", "spec.podUID", "spec.serviceAccountName"}, unsupported},

		{resourceSlices, []field{{"spec.nodeName", "n1", ""}, {"spec.driver", "said.example.com", "other.example.com"}}, []specimen{
			{"bare", slice("other.example.com", "allNodes", true), nil},
			{"said", slice("said.example.com", "nodeName", "n1"), nil},
			{"other", slice("other.example.com", "nodeName", "n2"), nil},
		}, append([]string{"metadata.namespace", "spec.devices"}, since(37, nil, []string{"spec.pool.name"})...), "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: %s"},

		{secrets, []field{{"type", "example.com/said", "Opaque"}}, []specimen{
			{"bare", nil, nil},
			{"said", map[string]any{"type": "example.com/said"}, nil},
		}, []string{"data", "immutable"}, unsupported},

		{configMaps, []field{{"metadata.name", "said", ""}}, []specimen{
			{"said", nil, nil},
		}, []string{"data", "immutable", "metadata.uid"}, unknown},
	}
	for _, s := range since(37, all, nil) {
		if s.of == trustBundles || s.of == podCertificates { // v1 has the same objects
			c := *s.of
			c.name, c.root, s.objects = c.name+" v1", "/apis/certificates.k8s.io/v1", nil
			s.of = &c
			all = append(all, s)
		}
	}
	return all
}

const (
	// typed is a version with selectable fields of all types, some of them at unusual paths.
	typed = `{"name":"v1","served":true,"storage":true,
		"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.on"},{"jsonPath":".spec.size"},{"jsonPath":".spec.deep.er.key"},
			{"jsonPath":".spec.with-dash"},{"jsonPath":".spec.map.any"},{"jsonPath":".spec.default"},{"jsonPath":".top"}],
		"schema":{"openAPIV3Schema":{"type":"object","properties":{"top":{"type":"string","nullable":true},"spec":{"type":"object","properties":{
			"color":{"type":"string","enum":["","red","\"<blue>\\ & ü\u2028"]},"on":{"type":"boolean"},"size":{"type":"integer"},"with-dash":{"type":"string"},
			"default":{"type":"integer","default":7},"map":{"type":"object","additionalProperties":{"type":"string"}},
			"deep":{"type":"object","nullable":true,"properties":{"er":{"type":"object","properties":{"key":{"type":"string"}}}}}}}}}}}`
	untyped = `{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}`
)

// custom returns the selectable fields of the version typed.
func custom(c *collection) selectables {
	return selectables{c, []field{
		{"spec.color", "red", ""},
		{"spec.color", "\"<blue>\\ & ü\u2028", ""},
		{"spec.on", "true", ""},
		{"spec.on", "false", ""},
		{"spec.size", "9007199254740993", ""},
		{"spec.size", "-5", ""},
		{"spec.size", "1000", ""},
		{"spec.size", "0", ""},
		{"spec.deep.er.key", "k", ""},
		{"spec.with-dash", "d", ""},
		{"spec.map.any", "m", ""},
		{"spec.default", "8", "7"},
		{"top", "x", ""},
	}, []specimen{
		{"none", nil, nil},
		{"bare", spec(`{}`), nil},
		{"said", map[string]any{"top": "x", "spec": json.RawMessage(`{"color":"red","on":true,"size":9007199254740993,"deep":{"er":{"key":"k"}},
			"with-dash":"d","map":{"any":"m"},"default":8}`)}, nil},
		{"other", map[string]any{"top": nil, "spec": json.RawMessage(`{"color":"\"<blue>\\ & ü\u2028","on":false,"size":-5,"deep":null,"map":{}}`)}, nil},
		{"empty", map[string]any{"top": "", "spec": json.RawMessage(`{"color":"","size":-0,"deep":{"er":{"key":""}},"map":{"any":"","other":"m"}}`)}, nil},
		{"thousand", spec(`{"size":1e3,"deep":{"er":{}}}`), nil},
	}, []string{"spec.other", ".spec.color", "spec", "spec.map.other", "status.phase"}, unsupported}
}

func slice(driver, where string, value any) map[string]any {
	return map[string]any{"spec": map[string]any{
		"driver": driver, where: value, "pool": map[string]any{"name": cluster.UniqueName("pool"), "generation": 1, "resourceSliceCount": 1},
	}}
}

func signingRequest(t *testing.T, signer string) map[string]any {
	t.Helper()
	return map[string]any{"spec": map[string]any{
		"signerName": signer, "usages": []string{"client auth"},
		"request": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: certificateRequest(t)}),
	}}
}

func certificateRequest(tb testing.TB) []byte {
	tb.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, cluster.NewKeyT(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func trustBundle(tb testing.TB, signer string) map[string]any {
	tb.Helper()
	key := cluster.NewKeyT(tb)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return map[string]any{"spec": map[string]any{"signerName": signer, "trustBundle": bundle}}
}

func podCertificate(t *testing.T, signer, pod, node string) map[string]any {
	t.Helper()
	return map[string]any{"spec": map[string]any{
		"signerName": signer, "podName": pod, "podUID": "pod-uid", "serviceAccountName": "robot", "serviceAccountUID": "robot-uid",
		"nodeName": node, "nodeUID": "node-uid", "maxExpirationSeconds": 86400, "stubPKCS10Request": certificateRequest(t),
	}}
}

// begin starts the caches before the objects are created. Otherwise another write could precede the
// start of a cache, and the proxy would forward a watch from before this write.
func (s *selectables) begin(t *testing.T) {
	t.Helper()
	due := s.of.source(cache)
	if inParts {
		due = anywhere
	}
	if err := s.of.reach(t.Context(), s.of.all()+"?", 1, due); err != nil {
		t.Fatal(err)
	}
}

// create writes the specimens and returns the last resourceVersion. Cluster-scoped specimens get
// unique names.
func (s *selectables) create(t *testing.T, home string) (last uint64) {
	t.Helper()
	s.begin(t)
	for _, p := range s.objects {
		o := object{of: s.of, namespace: home, name: p.name, fields: maps.Clone(p.fields)}
		if !s.of.namespaced {
			o.name = fmt.Sprintf("%s-%s", p.name, home)
		}
		rv, err := o.create(t.Context())
		if err == nil && p.then != nil {
			rv, err = p.then(t.Context(), o)
		}
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, rv)
	}
	return last
}
