package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// paths returns the paths in an error of Load.
func paths(t *testing.T, err error) (named []string) {
	t.Helper()
	var all utilerrors.Aggregate
	if !errors.As(err, &all) {
		t.Fatalf("not several errors: %v", err)
	}
	for _, err := range all.Errors() {
		var one *field.Error
		if !errors.As(err, &one) {
			t.Fatalf("an error without a path: %v", err)
		}
		named = append(named, one.Field)
	}
	return named
}

// All errors of a file's form are reported together, in one line. So are all errors of its values.
// Each error contains the field and the allowed values.
func TestWrongFiles(t *testing.T) {
	for text, want := range map[string][]string{
		"drain: 5x": {`drain: Invalid value: "5x": must be a duration with its unit, such as 30s`},
		"drain: 5":  {`drain: Invalid value: "5": must be a duration`},
		"drain: []": {"drain: Invalid value: must be a duration with its unit, such as 30s or 1m30s, but is a list"},
		"cache: {syncTimeout: 5, log: {maxBytes: many}}\nauthentication: {anonymous: {enabled: maybe}}\nlogLevel: loud\nfoo: 1\nmemoryBudget: lots": {
			"cache.syncTimeout: ", "cache.log.maxBytes: ", "authentication.anonymous.enabled: Invalid value: \"maybe\": must be true or false",
			"foo: Forbidden: unknown field (there are accessLogSampling, ", "memoryBudget: ",
		},
		"cache: {exclude: [pods, 5x, Nodes]}":   {"cache.exclude[1]: ", "cache.exclude[2]: "},
		"limits: {maxConnections: 1.5}":         {`limits.maxConnections: Invalid value: "1.5": must be an integer`},
		"cache: {resources: [{name: 5}, pods]}": {"cache.resources[0].name: Invalid value: \"5\": must be text", "cache.resources[1]: Invalid value: \"pods\": must be an object"},
		"cache: {resources: [{name: nodes, maxAge: 1s, consistentReads: forward}, {name: pods, maxAge: 1ms}, {name: pods, consistentReads: some}, {name: ''}]}": {
			"cache.resources[0].maxAge: ", "cache.resources[1].maxAge: ", "cache.resources[2].consistentReads: Unsupported", "cache.resources[2].name: Duplicate", "cache.resources[3].name: ",
		},
		"upstream: {context: a, contexts: [b, b, ''], servers: ['https://a', 'a:1', 'https://a', 'https://user@a']}": {
			"upstream.contexts: Forbidden", "upstream.contexts[1]: Duplicate", "upstream.contexts[2]: ", "upstream.servers[1]: ", "upstream.servers[2]: Duplicate", "upstream.servers[3]: ",
		},
		"cache: {resources: [{name: pods, consistent: cache}]}": {"cache.resources[0].consistent: Forbidden: unknown field"},
		"goawayChance: .nan\nlogLevel: loud":                    {`goawayChance: Invalid value: ".nan": must be a number`},
		"goawayChance: 1\nlogLevel: loud":                       {"goawayChance: Invalid value: 1: must be from 0 to 0.02", "logLevel: "},
		"tls: {certFile: a, generated: {namespace: A, secretName: s, dnsNames: ['*.a', 'a b'], ipAddresses: [1.2.3]}}": {
			"tls.generated: Forbidden: must not be used together with certFile", "tls.generated.namespace: ", "tls.generated.configMapName: ",
			"tls.generated.dnsNames[1]: ", "tls.generated.ipAddresses[0]: ",
		},
		"tls: {generated: {namespace: a, secretName: s, configMapName: c}}": {"tls.generated.dnsNames: Required"},
		"tls: {certFile: a, privateKeyFile: b, sidecar: {}}": {
			"tls.sidecar: Forbidden: must not be used together with generated, certFile and privateKeyFile",
		},
		"listen: ':1'\ntls: {sidecar: {}}":                      {`listen: Invalid value: ":1": must be a loopback address if tls.sidecar is set`},
		"cache: {scopes: [{}]}":                                 {"cache.scopes[0]: Required value: limit the scope by "},
		"cache: {scopes: [{namespaces: [a], warm: true}]}":      {"cache.scopes[0].resources: Required value"},
		"cache: {scopes: [{fieldSelector: spec.nodeName=}]}":    {`cache.scopes[0].fieldSelector: Invalid value: "spec.nodeName=": "spec.nodeName" must have the form FIELD=VALUE`},
		"cache: {scopes: [{fieldSelector: spec.nodeName!=n}]}":  {`cache.scopes[0].fieldSelector: Invalid value: "spec.nodeName!=n": "spec.nodeName" must have the form FIELD=VALUE`},
		"cache: {scopes: [{resources: [secrets], warm: true}]}": {`cache.scopes[0].resources[0]: Invalid value: "secrets": is excluded from caching`},
		"tls: {certFile: a}":                                    {"tls.privateKeyFile: Required"},
		"tls: {privateKeyFile: a}":                              {"tls.certFile: Required"},
		"a: &a {x: 1}\ncache: {<<: *a}":                         {"a: Forbidden: unknown", "cache.<<: Forbidden: unknown"},
		"cache: {scopes: [{namespaces: [$(NO), '$']}, {fieldSelector: 'a=1,a=2'}, {fieldSelector: metadata.namespace=a}, {fieldSelector: ','}, {labelSelector: ' '}]}": {
			`namespaces[0]: Invalid value: "$(NO)": the environment variable NO is not set`, `namespaces[1]: Invalid value: "$": must name`,
			"scopes[1].fieldSelector: Invalid value: \"a=1,a=2\": a must not be given twice",
			"scopes[2].fieldSelector: Invalid value: \"metadata.namespace=a\": list the namespace in namespaces",
			"scopes[3].fieldSelector: Invalid value: \",\": selects everything", "scopes[4].labelSelector: Invalid value: \" \": selects everything",
		},
		"adminListen: nowhere":        {`adminListen: Invalid value: "nowhere": must be host:port`},
		"adminListen: 127.0.0.1:8001": {`adminListen: Invalid value: "127.0.0.1:8001": must differ from listen`},
		"cache: {log: {maxAge: 1s, maxAge: 2s}, log: {}}": {
			"cache.log.maxAge: Forbidden: is given twice, in lines 3 and 3", "cache.log: Forbidden: is given twice",
		},
		// Values are checked only once all of them can be read: this file has one error.
		"adminListen: nowhere\nlisten: 5": {"listen: "},
	} {
		_, err := load(t, head+text+"\n")
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		if got := paths(t, err); len(got) != len(want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: told are %q, want %q", text, got, want)
		}
		for _, says := range want {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q: no %q in %v", text, says, err)
			}
		}
	}
}

// Each field that is gone is refused with the sentence that says so.
func TestRemoved(t *testing.T) {
	for path, reason := range removed {
		names := strings.Split(path, ".")
		text := "{" + names[len(names)-1] + ": 1}"
		for _, name := range slices.Backward(names[:len(names)-1]) {
			if name == "views" {
				text = "[" + text + "]"
			}
			text = "{" + name + ": " + text + "}"
		}
		_, err := load(t, head+strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")+"\n")
		refusedFor(t, text, err, "Forbidden: is gone: "+reason+"; remove it")
	}
}

// A file is one object. Parse errors name the line.
func TestDocuments(t *testing.T) {
	for text, want := range map[string]string{
		head + "---\n# nothing\n":                 "",
		"---\n" + head + "...\n":                  "",
		head + "---\nlogLevel: debug\n":           "line 4: document 2",
		head + "---\n---\n" + head:                "document 3",
		"---\n---\n" + head:                       "document 2",
		head + "drain: 5x\n---\nlogLevel: debug":  "drain: ",
		head + "foo: 1\n---\nlogLevel: debug":     "document 2",
		"apiVersion: x\nkind: ProxyConfiguration": "apiVersion: ",
		"kind: ProxyConfiguration":                "apiVersion: Required value: must be watchproxy.dev/v1alpha1",
		"kind: a\nlisten: b: c\n":                 "mapping values are not allowed in this context",
		"[]":                                      "must be an object",
		"pods":                                    "must be an object",
		head + "cache: {\n":                       "line",
		head + "---\n\tx":                         "line",
		"":                                        "",
		"# nothing\n---\n":                        "",
		"{}":                                      "apiVersion: ",
		head + "cache:\n":                         "",
		head + "drain: null\nlogLevel: ~":         "",
		head + "upstream: {context: 2026-11-22}":  "",
		head + "upstream: {context: no}":          "",
		head + "memoryBudget: 1.5e9\ndrain: '0'":  "",
		head + "cache: {exclude: &x [pods, *x]}":  "cache.exclude[1]",
		head + "upstream: {contexts: [a, ~]}":     "upstream.contexts[1]",
		head + "cache: {5: x, {a: b}: c}":         "cache.5: Forbidden: unknown field",
		head + "Listen: 127.0.0.1:0":              "Listen: Forbidden: unknown field",
		`{"apiVersion": "watchproxy.dev/v1alpha1", "kind": "ProxyConfiguration", "drain": "7s"}`: "",
	} {
		_, err := load(t, text)
		refusedFor(t, text, err, want)
	}
}

// Deep nesting, and aliases that no field has, need little memory.
func TestHostileFiles(t *testing.T) {
	aliases := head + "x: &a0 [x, x]\n"
	for i := range 50 {
		aliases += fmt.Sprintf("x%d: &a%d [*a%d, *a%d]\n", i, i+1, i, i)
	}
	for text, want := range map[string]string{
		aliases + "drain: *a50\n":                         "drain: Invalid value: must be a duration",
		head + "cache: &a {log: *a}\n":                    "cache.log.log: Forbidden: unknown field",
		head + "cache: " + strings.Repeat("[", 100_000):   "line 3: not YAML",
		head + "cache: " + strings.Repeat("{a: ", 50_000): "line 3: not YAML",
	} {
		_, err := load(t, text)
		refusedFor(t, text[:min(100, len(text))], err, want)
	}
}

// everyField is a valid configuration with as many fields as can be combined.
const everyField = head + `listen: 0.0.0.0:8001
tls: {certFile: a, privateKeyFile: b}
authentication: {anonymous: {enabled: true}, x509: {clientCAFile: c}}
goawayChance: 0.01
upstream: {kubeconfig: k, context: c, servers: ["https://a", "https://b"]}
cache:
  exclude: [pods, deployments.apps]
  resources: [{name: nodes, consistentReads: forward, aggregated: true}, {name: leases.coordination.k8s.io}]
memoryBudget: 1Gi
accessLogSampling: 0.5
`

// leaf is a value of a configuration that can be replaced.
type leaf struct {
	path    string
	value   any
	replace func(any)
}

func leaves(path string, value any, replace func(any)) (all []leaf) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			all = append(all, leaves(strings.TrimPrefix(path+"."+name, "."), value[name], func(v any) { value[name] = v })...)
		}
		return all
	case []any:
		for i := range value {
			all = append(all, leaves(path+"["+strconv.Itoa(i)+"]", value[i], func(v any) { value[i] = v })...)
		}
		return all
	}
	return []leaf{{path, value, replace}}
}

// FuzzBrokenLeaves breaks some values of a valid configuration. Load must report exactly the broken
// values.
func FuzzBrokenLeaves(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint8(seed%25))
	}
	f.Fuzz(func(t *testing.T, seed uint64, k uint8) {
		c, err := load(t, everyField)
		if err != nil {
			t.Fatal(err)
		}
		tree := fieldsOf(t, c)
		all := leaves("", tree, nil)
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:min(int(k), len(all))]
		var want []string
		for _, l := range all {
			wrong := []any{[]any{"x"}, map[string]any{"x": 1}}
			switch l.value.(type) {
			case string:
				wrong = append(wrong, 5.5, true)
			case bool:
				wrong = append(wrong, "x", 5)
			default:
				wrong = append(wrong, "x", true)
			}
			with := wrong[random.IntN(len(wrong))]
			if number, ok := with.(float64); ok && (strings.HasSuffix(l.path, "Bytes") || l.path == "memoryBudget") {
				with = fmt.Sprint(number, "x") // sizes may be numbers
			}
			l.replace(with)
			want = append(want, l.path)
		}
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		_, err = load(t, string(text))
		if len(want) == 0 {
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			return
		}
		if err == nil {
			t.Fatalf("accepted: %s", text)
		}
		got := paths(t, err)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("told are\n%q, want\n%q: %s", got, want, text)
		}
	})
}
