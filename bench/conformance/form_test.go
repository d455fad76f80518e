package conformance

import (
	"bytes"
	"flag"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Every row is sent for plain JSON over a randomly chosen protocol, and also in other forms: in one
// random form, or in all. In a view, it is sent in one random form.
var allForms = flag.Bool("all-forms", false, "ask for every row in every form, instead of in one more form that is chosen at random")

// form is an encoding of responses: the Accept headers for a get, a list and a watch. An empty
// header means that the apiserver does not offer the form.
type form struct {
	name             string
	get, list, watch string
	gzip             bool
	protocol         cluster.Protocol
}

const meta = ";v=v1;g=meta.k8s.io"

// encodings are the apiserver's encodings, as clients request them. Custom resources have no
// protobuf. Errors have no Tables and no PartialObjectMetadata.
var encodings = []form{
	{name: "JSON", get: "application/json", list: "application/json", watch: "application/json"},
	{name: "indented", get: "application/json;pretty=1", list: "application/json;pretty=1", watch: "application/json;pretty=1"},
	{name: "YAML", get: "application/yaml", list: "application/yaml"},
	ofType("protobuf", "application/vnd.kubernetes.protobuf"),
	partial("metadata", "application/json"),
	partial("metadata in protobuf", "application/vnd.kubernetes.protobuf"),
	{name: "Table", get: table, list: table, watch: table},
}

const table = "application/json;as=Table" + meta + ",application/json"

func ofType(name, mime string) form {
	accept := mime + ",application/json"
	return form{name: name, get: accept, list: accept, watch: accept}
}

func partial(name, mime string) form {
	one := mime + ";as=PartialObjectMetadata" + meta + ",application/json"
	return form{name: name, get: one, list: mime + ";as=PartialObjectMetadataList" + meta + ",application/json", watch: one}
}

// forms are all encodings, uncompressed and compressed. The protocol is drawn for each row.
var forms = func() (all []form) {
	for _, f := range encodings {
		for _, f.gzip = range []bool{false, true} {
			all = append(all, f)
		}
	}
	return all
}()

func (f form) String() string {
	words := []string{f.name}
	if f.gzip {
		words = append(words, "gzip")
	}
	if f.protocol == cluster.HTTP2 {
		words = append(words, "HTTP/2")
	}
	return strings.Join(words, " ")
}

// lots picks forms for a row at random, from a seed and the row's name.
func lots(name string, forms []form) (picked []form) {
	if !*allForms {
		return []form{drawForm(name, forms)}
	}
	for _, f := range forms {
		f.protocol = cluster.DrawProtocol(stable(name), f.String())
		picked = append(picked, f)
	}
	return picked
}

func drawForm(name string, forms []form) form {
	name = stable(name)
	f := forms[cluster.Draw(len(forms), name)]
	f.protocol = cluster.DrawProtocol(name)
	return f
}

// fleeting matches the parts of names and targets that differ from run to run, such as
// resourceVersions.
var fleeting = regexp.MustCompile(`continue=[^&]*|\d+`)

// stable removes these parts, so that a draw depends only on the seed.
func stable(name string) string { return fleeting.ReplaceAllString(name, "") }

// settled chooses the protocol of a request that names none.
func settled(r request) request {
	if r.Protocol == cluster.Drawn && r.Header.Get("Connection") == "" && r.Header.Get("Upgrade") == "" {
		r.Protocol = cluster.DrawProtocol(r.Method, stable(r.Target), r.Header.Get("Accept"))
	}
	return r
}

// watchedForms are the forms of watches, which are never compressed.
var watchedForms = slices.DeleteFunc(slices.Clone(forms), func(f form) bool { return f.gzip || f.watch == "" })

var plainPath = regexp.MustCompile(`^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/([^/]+)(/[^/]+)?$`)

// accept returns the Accept header for a request. It returns "" if the form is not offered, or if
// the request is not sent in other forms.
func (f form) accept(r request) string {
	path, query, _ := strings.Cut(r.Target, "?")
	parts := plainPath.FindStringSubmatch(path)
	for _, name := range []string{"Accept", "Accept-Encoding", "User-Agent"} {
		if len(r.Header.Values(name)) > 0 {
			return ""
		}
	}
	switch {
	case r.Method != "" || parts == nil || parts[1] == "status" || parts[1] == "watch" || parts[1] == "finalize" || // a namespace's own path, and a prefix
		strings.HasPrefix(query, "pretty") || strings.Contains(query, "&pretty"):
		return ""
	case parts[2] != "":
		return f.get
	case watches(query):
		return f.watch
	}
	return f.list
}

func watches(query string) bool {
	values, _ := url.ParseQuery(query)
	return values.Has("watch") && values.Get("watch") != "0" && !strings.EqualFold(values.Get("watch"), "false")
}

// of returns a request in the form.
func (f form) of(r request) (request, bool) {
	accept := f.accept(r)
	if accept == "" {
		return r, false
	}
	r = r.With("Accept", accept)
	if f.gzip {
		r = r.With("Accept-Encoding", "gzip")
	}
	r.Protocol = f.protocol
	return r, true
}

// largeConfigMap is an object of more than 64 KiB, which upstream writes in other forms than the
// cache's.
var largeConfigMap = configMaps.in("a") + "/large"

// as returns the row in a form.
func (r row) as(f form) (row, bool) {
	asked, ok := f.of(r.request)
	r.request, r.name = asked, r.name+", "+f.String()
	r.says = "" // the expected text is in JSON
	r.from = inForm(asked, r.from)
	return r, ok
}

// inForms returns the row in other forms.
func (r row) inForms() (rows []row) {
	for _, f := range lots(r.name+r.Target, forms) {
		if other, ok := r.as(f); ok {
			rows = append(rows, other)
		}
	}
	return rows
}

// viewForms are the forms that views have. In views, upstream answers in JSON, so metadata are asked for
// in JSON, too, as metadata informers do.
var viewForms = func() (all []form) {
	for _, f := range forms {
		for _, accept := range []*string{&f.get, &f.list, &f.watch} {
			if mime, as, ok := strings.Cut(*accept, ";as="); ok && mime == protobuf {
				*accept = mime + ";as=" + strings.Replace(as, ",", ",application/json;as="+as[:strings.Index(as, ",")+1], 1)
			}
		}
		if f.name != "YAML" {
			all = append(all, f)
		}
	}
	return all
}()

// viewedForms are the forms of watches in views.
var viewedForms = slices.DeleteFunc(slices.Clone(viewForms), func(f form) bool { return f.name == "indented" })

// inView returns the row in a view of its resource and in a form, both of which the seed selects.
func (r row) inView() (other row, ok bool) {
	of := views[resourceOf(r.Target)]
	if len(of) == 0 {
		return r, false
	}
	name := stable(r.name + r.Target)
	r.view = of[cluster.Draw(len(of), name, "view")]
	if other, ok = r.as(drawForm(name+" in a view", viewForms)); !ok {
		return r, false
	}
	other.name += ", " + r.view.name
	if strings.HasPrefix(r.Target, largeConfigMap) && strings.Contains(other.Header.Get("Accept"), "PartialObjectMetadata") {
		other.from = r.from // the cache cuts large objects, too
	}
	return other, true
}

// forwardedTables has the resources whose rows depend on other objects of the list, or have a
// duration or another age than that of the object.
var forwardedTables = []string{
	"flowschemas", "storageclasses",
	"jobs", "cronjobs", "events", "certificatesigningrequests", "devicetaintrules", "resourcepoolstatusrequests", "gauges",
}

// forwardedMetadata matches the resources whose metadata the apiserver makes from another version.
var forwardedMetadata = regexp.MustCompile(`^/apis/(apps/v1/(.*/)?(daemonsets|deployments)|autoscaling/v1/(.*/)?horizontalpodautoscalers)(/|$)`)

// inForm returns the source of a response whose JSON has the source from. Upstream writes YAML and
// indented JSON, some Tables and some metadata, and objects of more than 64 KiB in other forms than the
// cache's.
func inForm(r request, from source) source {
	path, query, _ := strings.Cut(r.Target, "?")
	parts, accept := plainPath.FindStringSubmatch(path), r.Header.Get("Accept")
	partial := strings.Contains(accept, "PartialObjectMetadata")
	switch {
	case from == "" || parts == nil:
		return from
	case strings.HasPrefix(accept, "application/yaml"),
		strings.HasPrefix(accept, "application/json;pretty=1") && (parts[2] != "" || !watches(query)),
		parts[2] == "/large" && (accept == table || partial):
		return upstream // without a review
	case from == cache && (accept == table && slices.Contains(forwardedTables, parts[1]) || partial && forwardedMetadata.MatchString(path)):
		return upstream
	}
	return from
}

// unwritable reports whether the apiserver could not write a response, because its YAML encoder
// does not support control characters.
func unwritable(r reply) bool {
	return r.Status == http.StatusInternalServerError && bytes.Contains(r.Body, []byte("control characters are not allowed"))
}
