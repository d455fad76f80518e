package wire

import (
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// MediaType is the media type of a response.
type MediaType uint8

// The media types of kube-apiserver that the proxy reads or writes.
const (
	JSON MediaType = iota
	YAML           // of errors only
	Protobuf
)

// Choice is a form of a response.
type Choice struct {
	MediaType MediaType
	Partial   bool // only metadata: PartialObjectMetadata, or PartialObjectMetadataList for a list
	Table     bool // JSON only
	Pretty    bool // indented; never for watches, JSON only. Only errors are written so
	// Fields says which fields of the objects stay; nil for all. Message is the same for protobuf.
	Fields  *projection.Projection
	Message *projection.Message
}

// Read is a kind of read. The form depends on it.
type Read uint8

// The reads that a cache answers.
const (
	Get Read = iota
	List
	Watch
)

// sortedMax is the largest number of Accept clauses that kube-apiserver sorts stably. acceptMost is
// the longest Accept header that is parsed, in bytes: twice what Kubernetes' clients send at most.
const sortedMax, acceptMost = 12, 512

// parseAccept parses an Accept header like kube-apiserver. It returns false for one that is too
// long, whose clauses would cost hundreds of microseconds: over HTTP/2, a byte may refer to them.
func parseAccept(accept string) (clauses []goautoneg.Accept, ok bool) {
	if len(accept) > acceptMost || strings.Count(accept, ",") >= sortedMax {
		return nil, false
	}
	return goautoneg.ParseAccept(accept), true
}

// encodings are kube-apiserver's encodings, in the order that it uses for a wildcard.
var encodings = []struct {
	subtype   string
	mediaType MediaType
}{{"json", JSON}, {"yaml", YAML}, {"vnd.kubernetes.protobuf", Protobuf}}

// forwardedTypes are parts of media types for which upstream answers, whatever else is accepted. In
// views, these clauses do not count.
var forwardedTypes = []string{"cbor"}

// Negotiate parses an Accept header like kube-apiserver and returns the form of the response. After
// plain protobuf, further choices may follow, for resources without protobuf, such as custom
// resources. At a clause that only upstream can answer, it returns the choices before it: for YAML,
// and in every case of doubt. It returns none for a refusal.
func Negotiate(accept string, read Read, pretty bool) (choices []Choice) {
	if accept == "" {
		return []Choice{{Pretty: pretty && read != Watch}}
	}
	clauses, ok := parseAccept(accept)
	forwarded := func(t string) bool { return strings.Contains(accept, t) }
	if !ok || slices.ContainsFunc(forwardedTypes, forwarded) {
		return nil
	}
	for i := range clauses {
		for _, e := range encodings {
			if !matches(&clauses[i], e.subtype) {
				continue
			}
			c, use := choose(&clauses[i], e.mediaType, read)
			if use == next {
				continue
			}
			if use == stop || c.MediaType == YAML ||
				clauses[i].SubType == "*" && clauses[i].Type != "*" {
				return choices // custom resources accept application/*, built-in resources do not
			}
			if clauses[i].Type == "*" && !strings.Contains(accept, "*/*") {
				return choices
			}
			c.Pretty = (c.Pretty || pretty) && c.MediaType == JSON && read != Watch
			choices = append(choices, c)
			if c.MediaType != Protobuf || c.Partial {
				return choices
			}
		}
	}
	return choices
}

// NegotiateCut is Negotiate for a resource whose objects are cut. Protobuf comes before JSON only
// if its messages can be cut.
func NegotiateCut(
	accept string, read Read, pretty bool, fields *projection.Projection,
	of schema.GroupVersionResource,
) (choices []Choice) {
	for _, c := range Negotiate(accept, read, pretty) {
		if c.MediaType != Protobuf {
			break
		}
		if c.Message = fields.Message(of); c.Partial {
			c.Message = fields.Metadata()
		}
		if c.Fields = fields; c.Message != nil {
			choices = append(choices, c)
		}
	}
	accept, ok := AcceptsJSON(accept)
	if !ok {
		return choices
	}
	for _, c := range Negotiate(accept, read, pretty) {
		if c.Fields = fields; c.MediaType == JSON {
			choices = append(choices, c)
		}
	}
	return choices
}

// AcceptsJSON returns an Accept header without the clauses for other media types than JSON. It
// returns false if no clause is left. Kube-apiserver refuses application/* for built-in resources.
func AcceptsJSON(accept string) (rest string, ok bool) {
	var kept []string
	for clause := range strings.SplitSeq(accept, ",") {
		mediaType, _, _ := strings.Cut(clause, ";")
		switch strings.TrimSpace(mediaType) {
		case mimeJSON, "application/*", "*/*":
			kept = append(kept, strings.Replace(clause, "application/*", mimeJSON, 1))
		}
	}
	return strings.Join(kept, ","), len(kept) > 0 || accept == ""
}

// AcceptsPlain returns an Accept header without the clauses for Tables and for metadata. It returns
// false if there is none of these, or if no clause is left.
func AcceptsPlain(accept string) (rest string, ok bool) {
	var kept []string
	all := 0
	for clause := range strings.SplitSeq(accept, ",") {
		all++
		as := slices.ContainsFunc(strings.Split(clause, ";"), func(parameter string) bool {
			return strings.HasPrefix(strings.TrimSpace(parameter), "as=")
		})
		if !as {
			kept = append(kept, clause)
		}
	}
	return strings.Join(kept, ","), len(kept) > 0 && len(kept) < all
}

func matches(clause *goautoneg.Accept, subtype string) bool {
	return clause.Type == "application" && (clause.SubType == subtype || clause.SubType == "*") ||
		clause.Type == "*" && clause.SubType == "*"
}

// understood are the parameters of a media type that kube-apiserver 1.37 knows, and charset, which
// some clients send. A newer apiserver may know others, such as drop=metadata.managedFields.
var understood = []string{"as", "g", "v", "sv", "stream", "pretty", "profile", "charset"}

type clauseResult uint8

const (
	take clauseResult = iota
	next              // kube-apiserver skips the clause
	stop              // upstream must answer
)

func choose(clause *goautoneg.Accept, m MediaType, read Read) (Choice, clauseResult) {
	c := Choice{MediaType: m}
	p := clause.Params
	if stream := p["stream"]; stream != "" && (m == YAML || stream != "watch") {
		return c, next
	}
	c.Pretty = p["pretty"] == "1"
	if p["sv"] != "" {
		return c, stop
	}
	for name := range p {
		if !slices.Contains(understood, name) {
			return c, stop
		}
	}
	for _, name := range []string{"as", "g", "v"} {
		if _, converts := p[name]; converts {
			return convert(c, p["as"], p["g"], p["v"], read)
		}
	}
	return c, take
}

func convert(c Choice, as, group, version string, read Read) (Choice, clauseResult) {
	known := as == "Table" || as == partialKind || as == partialLists
	wanted := partialKind
	if read == List {
		wanted = partialLists
	}
	switch {
	case group != metaGroup || version != metaVersion && version != "v1beta1" || !known:
		return c, next
	case as == "Table" && c.MediaType == Protobuf:
		return c, next
	case as == "Table" && version == metaVersion && c.MediaType == JSON:
		c.Table = true
		return c, take
	case as != wanted, version != metaVersion:
		return c, stop
	}
	c.Partial = true
	return c, take
}

// NegotiateError returns the form of a Status. If no clause fits, the form is indented JSON. If the
// header is too long, the form is JSON.
func NegotiateError(accept string, pretty bool) Choice {
	clauses, ok := parseAccept(accept)
	if accept == "" || !ok {
		return Choice{Pretty: pretty}
	}
	for i := range clauses {
		for _, e := range encodings {
			if !matches(&clauses[i], e.subtype) {
				continue
			}
			c, use := choose(&clauses[i], e.mediaType, Get)
			p := clauses[i].Params
			if use == next || c.Partial || c.Table || p["as"] != "" || p["sv"] != "" {
				continue // a Status is not converted
			}
			c.Pretty = (c.Pretty || pretty) && c.MediaType == JSON
			return c
		}
	}
	return Choice{Pretty: true}
}

// Pretty reports whether kube-apiserver indents a response: for curl, wget, browsers, or if asked.
func Pretty(query, userAgent string) bool {
	if parameter, _ := Parameter(query, "pretty"); parameter != "" {
		pretty, _ := strconv.ParseBool(parameter)
		return pretty
	}
	for _, human := range []string{"curl", "Wget", "Mozilla/5.0"} {
		if strings.HasPrefix(userAgent, human) {
			return true
		}
	}
	return false
}

// AcceptsGzip reports whether kube-apiserver would compress a long response.
func AcceptsGzip(acceptEncoding string) bool {
	for token := range strings.SplitSeq(acceptEncoding, ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}
