package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/config"
)

// The chart refuses an invalid value with a message that names the field and the valid values.
func TestBadValues(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		`{replica: 3}`:                                       `additional properties 'replica' not allowed`,
		`{kind: StatefulSet}`:                                `at '/kind': value must be one of 'Deployment', 'DaemonSet', 'Sidecar'`,
		`{replicaCount: two}`:                                `at '/replicaCount': got string, want integer`,
		`{config: {lisen: ":6443"}}`:                         `at '/config': additional properties 'lisen' not allowed`,
		`{config: {cache: {log: {maxage: 5m}}}}`:             `at '/config/cache/log': additional properties 'maxage' not allowed`,
		`{config: {drain: 30}}`:                              `at '/config/drain': got number, want string`,
		`{config: {drain: half a minute}}`:                   `at '/config/drain': 'half a minute' does not match pattern`,
		`{config: {goawayChance: 0.5}}`:                      `at '/config/goawayChance': maximum: got 0.5, want 0.02`,
		`{config: {logLevel: verbose}}`:                      `at '/config/logLevel': value must be one of 'debug', 'info', 'warn', 'error'`,
		`{config: {authentication: {mode: oidc}}}`:           `at '/config/authentication/mode': value must be one of 'delegated', 'none'`,
		`{config: {cache: {log: {maxBytes: lots}}}}`:         `at '/config/cache/log/maxBytes'`,
		`{config: {cache: {resources: [{name: Pods}]}}}`:     `at '/config/cache/resources/0/name': 'Pods' does not match pattern`,
		`{config: {tls: {certFile: /a}}, tls: {mode: none}}`: `at '/config/tls': properties 'privateKeyFile' required, if 'certFile' exists`,
		`{cachedResources: ["*"]}`:                           `at '/cachedResources/0': '*' does not match pattern`,
		`{cachedResources: [pods, pods]}`:                    `at '/cachedResources': items at 0 and 1 are equal`,
		`{image: {digest: abc}}`:                             `at '/image/digest': 'abc' does not match pattern`,
		`{tls: {mode: letsencrypt}}`:                         `at '/tls/mode': value must be one of`,
		`{service: {port: 70000}}`:                           `at '/service/port': maximum: got 70,000, want 65,535`,
		`{resources: {limits: {memory: 1 GB}}}`:              `at '/resources/limits/memory'`,
		`{podLabels: {a: 1}}`:                                `at '/podLabels/a': got number, want string`,

		`{enabled: "yes"}`: `at '/enabled': got string, want boolean`,

		`{config: {authentication: {mode: none}}}`:                     `config.authentication.mode: others can reach :6443`,
		`{config: {memoryBudget: 1Mi}}`:                                `config.memoryBudget: 1Mi is too little: at least 64Mi, or 0`,
		`{config: {limits: {maxHeaderBytes: 1Ki}}}`:                    `config.limits.maxHeaderBytes: 1Ki is too little: at least 4Ki`,
		`{config: {limits: {maxRequestBodyBytes: 2Gi}}}`:               `config.limits.maxRequestBodyBytes: 2Gi is too much: at most 1Gi`,
		`{config: {limits: {readTimeout: "0"}}}`:                       `config.limits.readTimeout: 0 is too little: at least 1s`,
		`{config: {cache: {log: {maxAge: "0"}}}}`:                      `config.cache.log.maxAge: 0 is too little: at least 1s`,
		`{config: {cache: {log: {maxBytes: 0}}}}`:                      `config.cache.log.maxBytes: 0 is too little: at least 1`,
		`{config: {authorization: {watchRecheckInterval: 10ms}}}`:      `config.authorization.watchRecheckInterval: 10ms is too little: at least 1s, or 0`,
		`{config: {upstream: {contexts: [a], servers: [http://a]}}}`:   `config.upstream.contexts: must not be used together with context or servers`,
		`{config: {upstream: {servers: [a]}}}`:                         `at '/config/upstream/servers/0': 'a' does not match pattern`,
		`{config: {adminListen: ":6443"}}`:                             `config.adminListen: :6443 has the port of config.listen`,
		`{config: {listen: ":99999"}}`:                                 `config.listen: name a port from 1 to 65535`,
		`{config: {cache: {resources: [{name: pods}, {name: pods}]}}}`: `config.cache.resources: pods is there twice`,

		`{config: {views: [{name: A, fields: [spec]}]}}`:                          `at '/config/views/0/name': 'A' does not match pattern`,
		`{config: {views: [{name: a, keep: [spec]}]}}`:                            `at '/config/views/0': additional properties 'keep' not allowed`,
		`{config: {views: [{name: a}]}}`:                                          `config.views: a needs the fields to keep in fields, fields in drop, or namespaces: allowed`,
		`{config: {views: [{name: a, fields: [spec], drop: [status]}]}}`:          `config.views: a must not have both fields and drop`,
		`{config: {views: [{name: a, fields: [spec]}, {name: a, drop: [spec]}]}}`: `config.views: a is there twice`,

		`{config: {listen: "127.0.0.1:6443"}}`:                                         `config.listen: 127.0.0.1:6443 can only be reached from within the pod`,
		`{config: {listen: ":0"}}`:                                                     `config.listen: name a port`,
		`{config: {adminListen: "localhost:8002"}}`:                                    `config.adminListen: the kubelet's probes cannot reach localhost:8002`,
		`{tls: {mode: none}}`:                                                          `tls.mode: clients of :6443 bring credentials`,
		`{tls: {mode: secret}}`:                                                        `tls.secret.name: name the Secret`,
		`{replicas: 3}`:                                                                `additional properties 'replicas' not allowed`,
		`{topologySpreadConstraints: [{maxSkew: 1}]}`:                                  `at '/topologySpreadConstraints/0': missing property 'topologyKey'`,
		`{podDisruptionBudget: {minAvailable: most}}`:                                  `at '/podDisruptionBudget/minAvailable'`,
		`{monitoring: {serviceMonitor: {labels: {a: b}}}}`:                             `at '/monitoring/serviceMonitor': additional properties 'labels' not allowed`,
		`{global: {compatibility: {openshift: {adaptSecurityContext: true}}}}`:         `value must be one of 'auto', 'force', 'disabled'`,
		`{service: {externalTrafficPolicy: Local}}`:                                    `service.externalTrafficPolicy: a ClusterIP has none`,
		`{service: {nodePort: 30443}}`:                                                 `service.nodePort: a ClusterIP has none`,
		`{service: {type: NodePort, loadBalancerClass: a}}`:                            `service.loadBalancerClass: a NodePort has no load balancer`,
		`{service: {type: NodePort, clusterIP: None}}`:                                 `service.clusterIP: a NodePort needs a cluster IP`,
		`{extraObjects: [{kind: A}]}`:                                                  `at '/extraObjects/0'`,
		`{config: {tls: {generated: {namespace: a}}}, tls: {mode: none}}`:              `at '/config/tls/generated': missing properties 'secretName', 'configMapName'`,
		`{config: {tls: {certFile: /a, privateKeyFile: /b}}}`:                          `config.tls: the chart sets it for tls.mode generated`,
		`{kind: DaemonSet, autoscaling: {enabled: true}}`:                              `autoscaling.enabled: a DaemonSet is not scaled`,
		`{autoscaling: {enabled: true, minReplicas: 9}}`:                               `autoscaling.minReplicas: must not be more than maxReplicas`,
		`{cachedResources: [secrets]}`:                                                 `cachedResources: secrets are only cached if config.cache.resources names them`,
		`{config: {cache: {resources: [{name: secrets}]}}}`:                            `config.cache.resources: the proxy may not list and watch secrets`,
		`{monitoring: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}}`: `monitoring: each pod would be scraped twice`,
		`{monitoring: {prometheusRule: {enabled: true}}}`:                              `monitoring.prometheusRule.job: name the job label`,
		`{kind: Sidecar}`:                                                              `service.enabled: a Sidecar's clients are in its pod`,
		`{kind: Sidecar, service: {enabled: false}}`:                                   `serviceAccount.create: a Sidecar runs as the application's`,
		`{kind: Sidecar, service: {enabled: false}, serviceAccount: {create: false}}`:  `serviceAccount.name: name the application's`,
		sidecarWith(`config: {listen: ":6443"}`):                                       `config.listen: a Sidecar's clients are in its pod, and others can reach :6443`,
		sidecarWith(`tls: {mode: generated}`):                                          `tls.mode: a Sidecar's clients are in its pod`,
		sidecarWith(`tls: {mode: sidecar}, config: {listen: "unix:///run/a"}`):         `tls.mode: a client's in-cluster configuration cannot name a Unix socket`,
		`{kind: DaemonSet, hostNetwork: true, config: {adminListen: "127.0.0.1:8003"}, monitoring: {serviceMonitor: {enabled: true}}}`:                   `monitoring.serviceMonitor.enabled: Prometheus cannot reach 127.0.0.1:8003`,
		sidecarWith(`config: {listen: "127.0.0.1:8001", adminListen: "127.0.0.1:8002"}, monitoring: {podMonitor: {enabled: true, podLabels: {app: a}}}`): `monitoring.podMonitor.enabled: Prometheus cannot reach 127.0.0.1:8002`,
		`{hostNetwork: true}`: `hostNetwork: only a DaemonSet has one pod for each node`,
		`{hostPort: 6443}`:    `hostPort: only a DaemonSet has one pod for each node`,
		`{kind: DaemonSet, hostNetwork: true, hostPort: 6443}`:                                                        `hostPort: with hostNetwork, config.listen names the port`,
		`{kind: DaemonSet, hostNetwork: true, config: {listen: "127.0.0.1:6443"}}`:                                    `config.authentication.mode: all processes of a node can reach 127.0.0.1:6443`,
		`{kind: DaemonSet, hostNetwork: true, networkPolicy: {enabled: true}}`:                                        `networkPolicy.enabled: policies do not apply`,
		`{kind: DaemonSet, hostNetwork: true, tls: {mode: none}}`:                                                     `tls.mode: clients of :6443 bring credentials`,
		`{kind: DaemonSet, hostPort: 6443, updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}`:        `updateStrategy.rollingUpdate.maxSurge: two pods cannot have the same port`,
		`{kind: DaemonSet, hostNetwork: true, config: {listen: "127.0.0.1:6443", authentication: {mode: delegated}}}`: `service.enabled: a Service cannot lead to 127.0.0.1:6443`,
		`{tls: {mode: sidecar}}`: `tls.mode: sidecar is for clients in the same pod`,
		sidecarWith(`config: {listen: "127.0.0.1:8001", authentication: {mode: delegated}}`): `config.authentication.mode: clients of 127.0.0.1:8001 are authenticated`,
		`{fullnameOverride: My_Proxy}`:                                                                                      `at '/fullnameOverride': 'My_Proxy' does not match pattern`,
		`{nameOverride: a.b}`:                                                                                               `at '/nameOverride': 'a.b' does not match pattern`,
		`{podLabels: {app.kubernetes.io/name: a}}`:                                                                          `podLabels: app.kubernetes.io/name selects the pods`,
		`{commonLabels: {app.kubernetes.io/instance: a}}`:                                                                   `commonLabels: app.kubernetes.io/instance selects the pods`,
		`{tls: {mode: certManager, serviceNames: false}}`:                                                                   `tls.dnsNames: without tls.serviceNames, name what`,
		`{tls: {mode: secret, secret: {name: a}, serviceNames: false}}`:                                                     `tls.dnsNames: without tls.serviceNames, name what`,
		`{tls: {mode: certManager, certManager: {duration: 24h}}}`:                                                          `tls.certManager.renewBefore: 720h must be less than duration, 24h`,
		`{flowSchema: {priorityLevel: {create: false}}}`:                                                                    `flowSchema.priorityLevel.name: name one that is there`,
		`{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}`:                                                `resources.requests.cpu: autoscaling aims at a part of it`,
		`{monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true, disabled: [WatchproxyGone]}}}`:          `monitoring.prometheusRule.disabled: there is no alert WatchproxyGone, but WatchproxyDown`,
		`{monitoring: {podMonitor: {enabled: true}}, config: {adminAuthentication: {alwaysAllowPaths: [/livez, /readyz]}}}`: `monitoring.podMonitor.scheme: /metrics needs credentials`,
		`{monitoring: {serviceMonitor: {enabled: true, authorization: {type: Bearer}}}}`:                                    `monitoring.serviceMonitor.scheme: tlsConfig and authorization are for https`,
		`{networkPolicy: {extraEgress: {}}}`:                                                                                `at '/networkPolicy/extraEgress': got object, want array`,

		`{updateStrategy: {type: OnDelete}}`:                                                                           `updateStrategy.type: a Deployment has no OnDelete: let it be RollingUpdate or Recreate`,
		`{kind: DaemonSet, updateStrategy: {type: Recreate}}`:                                                          `updateStrategy.type: a DaemonSet has no Recreate`,
		`{updateStrategy: {type: Rolling}}`:                                                                            `at '/updateStrategy/type': value must be one of`,
		`{updateStrategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}}`:                                             `updateStrategy.rollingUpdate: Recreate has none`,
		`{updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}}`:                                          `updateStrategy.rollingUpdate: no pod can be replaced`,
		`{updateStrategy: {rollingUpdate: {maxSurge: 0%, maxUnavailable: 0}}}`:                                         `updateStrategy.rollingUpdate: no pod can be replaced`,
		`{kind: DaemonSet, updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}`:                                      `updateStrategy.rollingUpdate: no pod can be replaced`,
		`{kind: DaemonSet, updateStrategy: {rollingUpdate: {maxSurge: 1}}}`:                                            `updateStrategy.rollingUpdate: a DaemonSet has only one of`,
		`{service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4, IPv6]}}`:                                           `service.ipFamilies: SingleStack has one family`,
		`{extraVolumes: [{name: watchproxy-config, emptyDir: {}}]}`:                                                    `extraVolumes: the pod has another volume watchproxy-config`,
		`{extraVolumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}`:                                           `extraVolumes: the pod has another volume a`,
		`{extraVolumes: [{emptyDir: {}}]}`:                                                                             `at '/extraVolumes/0': missing property 'name'`,
		`{extraVolumeMounts: [{name: a, mountPath: /a}]}`:                                                              `extraVolumeMounts: there is no volume a`,
		`{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /etc/watchproxy/config}]}`: `extraVolumeMounts: something else is mounted at /etc/watchproxy/config`,
		`{persistence: {type: none}}`:                                                                                  `persistence`,
		`{extraContainers: [{name: watchproxy, image: a}]}`:                                                            `extraContainers: the pod has another container watchproxy`,
		`{initContainers: [{name: a, image: a}], extraContainers: [{name: a, image: a}]}`:                              `extraContainers: the pod has another container a`,
		`{tls: {ipAddresses: [300.1.1.1]}}`:                                                                            `at '/tls/ipAddresses/0': '300.1.1.1' does not match pattern`,
		`{config: {memoryBudget: 2Gi}}`:                                                                                `config.memoryBudget: 2Gi is more than resources.limits.memory, 1Gi`,
		`{config: {memoryBudget: 1073741825}}`:                                                                         `is more than resources.limits.memory, 1Gi`,
		`{kind: DaemonSet, replicaCount: 3}`:                                                                           `replicaCount: it has no effect on a DaemonSet`,
		`{kind: DaemonSet, podDisruptionBudget: {minAvailable: 1}}`:                                                    `podDisruptionBudget: a DaemonSet has none`,
		`{kind: DaemonSet, topologySpreadConstraints: [{topologyKey: rack}]}`:                                          `topologySpreadConstraints: they have no effect on a DaemonSet`,
		`{rbac: {create: false, impersonation: {enabled: true}}}`:                                                      `rbac.impersonation.enabled: the chart creates no roles`,
		sidecarWith(`updateStrategy: {type: Recreate}`):                                                                `updateStrategy: the pods of a Sidecar`,

		sidecarWith(`networkPolicy: {enabled: true}`):                `networkPolicy.enabled: the pods of a Sidecar are the application's`,
		sidecarWith(`monitoring: {podMonitor: {enabled: true}}`):     `monitoring.podMonitor.podLabels: name labels`,
		sidecarWith(`monitoring: {serviceMonitor: {enabled: true}}`): `monitoring.serviceMonitor.enabled: there is no Service`,
	} {
		_, err := template(loadChart(t), parseValues(t, values))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", values, err, want)
		}
	}
}

// A value that is set to null has its default, is empty, or is refused by a message that names it. It
// never breaks a template.
func TestNullValues(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chartDir(), "values.yaml"))
	must(t, err)
	var paths []string
	var walk func(path string, values map[string]any)
	walk = func(path string, values map[string]any) {
		for name, value := range values {
			at := strings.TrimPrefix(path+"."+name, ".")
			paths = append(paths, at)
			if below, ok := value.(map[string]any); ok {
				walk(at, below)
			}
		}
	}
	walk("", parseValues(t, string(text)))
	for _, path := range paths {
		_, err := template(loadChart(t), nested(path, nil))
		if err != nil && (strings.Contains(err.Error(), "error calling") || strings.Contains(err.Error(), "nil pointer")) && !strings.Contains(err.Error(), "error calling fail") {
			t.Errorf("%s: null: %v", path, err)
		}
	}
	all := render(t, parseValues(t, `{securityContext: null, podSecurityContext: null, global: {compatibility: {openshift: null}}}`))
	pod := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec
	if c := pod.Containers[0].SecurityContext; c != nil && c.ReadOnlyRootFilesystem != nil {
		t.Errorf("the container has the security context %v", c)
	}
}

func sidecarWith(more string) string {
	if !strings.Contains(more, "config:") {
		more = `config: {listen: "127.0.0.1:8001"}, ` + more
	}
	if !strings.Contains(more, "tls:") {
		more = `tls: {mode: none}, ` + more
	}
	return `{kind: Sidecar, service: {enabled: false}, serviceAccount: {create: false, name: a}, ` + more + `}`
}

// The schema of config has all fields of ProxyConfiguration except those that the chart itself
// sets.
func TestSchemaHasAllOfTheConfiguration(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir(), "values.schema.json"))
	must(t, err)
	var schema struct {
		Properties map[string]schemaNode `json:"properties"`
	}
	must(t, json.Unmarshal(text, &schema))
	compareFields(t, "config", schema.Properties["config"], reflect.TypeFor[config.ProxyConfiguration](), "apiVersion", "kind")
}

type schemaNode struct {
	Properties map[string]schemaNode `json:"properties"`
	Items      *schemaNode           `json:"items"`
	Additional any                   `json:"additionalProperties"`
}

// compareFields compares a schema with its Go type.
func compareFields(t *testing.T, path string, is schemaNode, of reflect.Type, without ...string) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of.Kind() == reflect.Slice:
		if is.Items == nil {
			t.Errorf("%s has no items in values.schema.json", path)
			return
		}
		compareFields(t, path+"[]", *is.Items, of.Elem())
		return
	case of.Kind() != reflect.Struct, of == reflect.TypeFor[metav1.Duration](), of == reflect.TypeFor[resource.Quantity]():
		return
	}
	if is.Additional != false {
		t.Errorf("%s takes unknown fields: values.schema.json needs additionalProperties: false there", path)
	}
	var names []string
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if slices.Contains(without, name) {
			continue
		}
		names = append(names, name)
		node, ok := is.Properties[name]
		if !ok {
			t.Errorf("%s.%s is missing in values.schema.json", path, name)
			continue
		}
		compareFields(t, path+"."+name, node, field.Type)
	}
	for name := range is.Properties {
		if !slices.Contains(names, name) {
			t.Errorf("%s.%s is in values.schema.json, and not in ProxyConfiguration", path, name)
		}
	}
}
