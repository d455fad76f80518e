package wire

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
)

// Encoding is one of those that the cache can answer in.
type Encoding uint8

// The encodings of kube-apiserver.
const (
	JSON Encoding = iota
	YAML
	Protobuf
)

// Choice is a way to write an answer.
type Choice struct {
	Encoding Encoding
	Partial  bool // metadata only: PartialObjectMetadata, in a list PartialObjectMetadataList
	Pretty   bool // indented, if it is JSON and no watch
}

// Read is what is asked for, as far as it decides on forms.
type Read uint8

// The reads that can be answered from a cache.
const (
	Get Read = iota
	List
	Watch
)

// sortedMax is how many clauses kube-apiserver keeps in order: it sorts them by
// an unstable algorithm that happens to be stable up to here.
const sortedMax = 12

// encodings are kube-apiserver's, in the order in which it takes them for a
// wildcard.
var encodings = []struct {
	subtype  string
	encoding Encoding
}{{"json", JSON}, {"yaml", YAML}, {"vnd.kubernetes.protobuf", Protobuf}}

// Negotiate reads an Accept header as kube-apiserver does and returns the form of
// the answer. If the first return value is plain protobuf, others may follow it, in
// which kube-apiserver would answer if the resource has no protobuf form, as
// custom resources have not.
//
// It returns nothing where upstream has to answer: Tables, what it would refuse,
// and whatever is in doubt.
func Negotiate(accept string, read Read, pretty bool) (choices []Choice) {
	if accept == "" {
		return []Choice{{Pretty: pretty && read != Watch}}
	}
	clauses := goautoneg.ParseAccept(accept)
	if len(clauses) > sortedMax || strings.Contains(accept, "cbor") {
		return nil
	}
	for i := range clauses {
		for _, e := range encodings {
			if !matches(&clauses[i], e.subtype) {
				continue
			}
			c, verdict := choose(&clauses[i], e.encoding, read)
			if verdict == next {
				continue
			}
			if verdict == upstream || clauses[i].SubType == "*" && clauses[i].Type != "*" {
				return choices // built-in resources do not know application/*, custom ones do
			}
			if clauses[i].Type == "*" && !strings.Contains(accept, "*/*") {
				return choices
			}
			c.Pretty = (c.Pretty || pretty) && c.Encoding == JSON && read != Watch
			choices = append(choices, c)
			if c.Encoding != Protobuf || c.Partial {
				return choices
			}
		}
	}
	return choices
}

func matches(clause *goautoneg.Accept, subtype string) bool {
	return clause.Type == "application" && (clause.SubType == subtype || clause.SubType == "*") ||
		clause.Type == "*" && clause.SubType == "*"
}

type verdict uint8

const (
	take     verdict = iota
	next             // kube-apiserver passes it over
	upstream         // for upstream to answer
)

// choose judges one clause for one encoding.
func choose(clause *goautoneg.Accept, e Encoding, read Read) (Choice, verdict) {
	c := Choice{Encoding: e}
	var as, group, version string
	converts := false
	if stream := clause.Params["stream"]; stream != "" && (e == YAML || stream != "watch") {
		return c, next
	}
	if clause.Params["sv"] != "" {
		return c, upstream
	}
	for name, value := range clause.Params {
		switch name {
		case "as":
			as, converts = value, true
		case "g":
			group, converts = value, true
		case "v":
			version, converts = value, true
		case "pretty":
			c.Pretty = value == "1"
		}
	}
	if converts {
		return convert(c, as, group, version, read)
	}
	if e == YAML && read == Watch {
		return c, upstream // refused
	}
	return c, take
}

// convert judges a clause that asks for another kind than the resource's.
func convert(c Choice, as, group, version string, read Read) (Choice, verdict) {
	known := slices.Contains([]string{"Table", "PartialObjectMetadata", "PartialObjectMetadataList"}, as)
	wanted := "PartialObjectMetadata"
	if read == List {
		wanted = "PartialObjectMetadataList"
	}
	switch {
	case group != metaGroup || version != metaVersion && version != "v1beta1" || !known:
		return c, next
	case as == "Table" && c.Encoding == Protobuf:
		return c, next
	case as != wanted, version != metaVersion, c.Encoding == YAML && read == Watch:
		return c, upstream
	}
	c.Partial = true
	return c, take
}

// NegotiateError returns the form of a Status: if no clause names one, indented
// JSON.
func NegotiateError(accept string, pretty bool) Choice {
	if accept == "" {
		return Choice{Pretty: pretty}
	}
	clauses := goautoneg.ParseAccept(accept)
	for i := range clauses {
		for _, e := range encodings {
			if !matches(&clauses[i], e.subtype) {
				continue
			}
			c, verdict := choose(&clauses[i], e.encoding, Get)
			if verdict == next || c.Partial || clauses[i].Params["as"] != "" || clauses[i].Params["sv"] != "" {
				continue // a Status is not transformed
			}
			c.Pretty = (c.Pretty || pretty) && c.Encoding == JSON
			return c
		}
	}
	return Choice{Pretty: true}
}

// Pretty tells whether kube-apiserver would indent the response: it does so for
// people at a terminal or in a browser, and when asked to.
func Pretty(query, userAgent string) bool {
	if strings.Contains(query, "pretty") {
		values, _ := url.ParseQuery(query) // of a malformed query counts what can be read
		if parameter := values.Get("pretty"); parameter != "" {
			pretty, _ := strconv.ParseBool(parameter)
			return pretty
		}
	}
	for _, human := range []string{"curl", "Wget", "Mozilla/5.0"} {
		if strings.HasPrefix(userAgent, human) {
			return true
		}
	}
	return false
}

// AcceptsGzip tells whether kube-apiserver would compress an answer that is long
// enough.
func AcceptsGzip(acceptEncoding string) bool {
	for token := range strings.SplitSeq(acceptEncoding, ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}
