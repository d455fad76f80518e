package config

import (
	"fmt"
	"math"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// setting is a field of a configuration, or an element of a list. The rules for its value are the
// tags of the field, and apply to each element of a list:
//
//	default  the value of a field that is not set
//	oneof    the possible values, separated by spaces
//	format   the name of one of the [formats]
//	min, max the inclusive limits of a number, duration or size; with zero, 0 is possible, too
//	unique   the elements of the list differ, or their names do
//	reload   the value may change while the proxy runs (see [Fixed])
type setting struct {
	path  *field.Path
	tag   reflect.StructTag
	value reflect.Value
}

func within(s setting) []setting {
	all := []setting{s}
	value := reflect.Indirect(s.value)
	switch {
	case !value.IsValid():
	case isObject(value.Type()):
		for f, member := range value.Fields() {
			all = append(all, within(setting{s.path.Child(nameOf(f)), f.Tag, member})...)
		}
	case value.Kind() == reflect.Slice:
		for i := range value.Len() {
			all = append(all, within(setting{s.path.Index(i), s.tag, value.Index(i)})...)
		}
	}
	return all
}

func (s setting) setDefault() {
	text, ok := s.tag.Lookup("default")
	if !ok || !s.value.IsZero() {
		return
	}
	value := s.value
	if value.Kind() == reflect.Pointer {
		value.Set(reflect.New(value.Type().Elem()))
		value = value.Elem()
	}
	set(value, text)
}

func set(value reflect.Value, text string) {
	if err := setScalar(&yaml.Node{Kind: yaml.ScalarNode, Value: text}, value); err != nil {
		panic(fmt.Sprintf("BUG: configuration has a tag with %q: %v", text, err))
	}
}

func (s setting) validate() (errs field.ErrorList) {
	value := reflect.Indirect(s.value)
	if !value.IsValid() {
		return nil
	}
	if value.Kind() == reflect.Slice {
		if s.tag.Get("unique") != "" {
			errs = duplicates(s.path, value)
		}
		return errs
	}
	known := strings.Fields(s.tag.Get("oneof"))
	if len(known) > 0 && !slices.Contains(known, value.String()) {
		if value.String() == "" {
			return field.ErrorList{field.Required(s.path, "must be "+strings.Join(known, " or "))}
		}
		if reason, gone := removedValues[s.path.String()+": "+value.String()]; gone {
			return field.ErrorList{field.Invalid(s.path, value.String(), "is gone: "+reason)}
		}
		return field.ErrorList{field.NotSupported(s.path, value.String(), known)}
	}
	if format := s.tag.Get("format"); format != "" {
		return invalid(s.path, value.String(), formats[format](value.String()))
	}
	if least := s.tag.Get("min"); least != "" {
		return s.validateAmount(value, least)
	}
	return nil
}

func invalid(path *field.Path, text string, problems []string) (errs field.ErrorList) {
	for _, problem := range problems {
		errs = append(errs, field.Invalid(path, text, problem))
	}
	return errs
}

func duplicates(path *field.Path, list reflect.Value) (errs field.ErrorList) {
	seen := map[string]bool{}
	for i := range list.Len() {
		at, element := path.Index(i), list.Index(i)
		if isObject(element.Type()) {
			at, element = at.Child("name"), element.FieldByName("Name")
		}
		if seen[element.String()] {
			errs = append(errs, field.Duplicate(at, element.String()))
		}
		seen[element.String()] = true
	}
	return errs
}

func (s setting) validateAmount(value reflect.Value, least string) field.ErrorList {
	n, printed := amount(value)
	bounds, most := "at least "+least, math.Inf(1)
	if text, ok := s.tag.Lookup("max"); ok {
		bounds, most = "from "+least+" to "+text, amountOf(text, value.Type())
	}
	if s.tag.Get("zero") != "" {
		if n == 0 {
			return nil
		}
		bounds = "0 or " + bounds
	}
	fits := n >= amountOf(least, value.Type()) && n <= most // a number may be NaN
	if size, ok := reflect.TypeAssert[resource.Quantity](value); ok {
		fits = fits && size.CmpInt64(size.Value()) == 0 // Value rounds up
		bounds += ", in whole bytes"
	}
	if fits {
		return nil
	}
	return field.ErrorList{field.Invalid(s.path, printed, "must be "+bounds)}
}

// amount returns a number, a duration or a size as a number, and as errors show it.
func amount(value reflect.Value) (n float64, printed any) {
	switch v := value.Interface().(type) {
	case metav1.Duration:
		return float64(v.Duration), v.Duration.String()
	case resource.Quantity:
		return v.AsApproximateFloat64(), v.String()
	case int:
		return float64(v), v
	}
	return value.Float(), value.Float()
}

func amountOf(text string, of reflect.Type) float64 {
	value := reflect.New(of).Elem()
	set(value, text)
	n, _ := amount(value)
	return n
}

// formats return the problems of a text, by the names of the formats in tags.
var formats = map[string]func(text string) []string{
	"address":   address,
	"hostname":  hostname,
	"label":     validation.IsDNS1123Label,
	"resource":  resourceName,
	"subdomain": validation.IsDNS1123Subdomain,
	"text":      problem(func(text string) bool { return text != "" }, "must not be empty"),
	"url":       problem(isServerURL, "must be a URL of a server: https://host:port"),
	"ip": problem(func(text string) bool { return net.ParseIP(text) != nil },
		"must be an IP address"),
}

func problem(ok func(text string) bool, otherwise string) func(string) []string {
	return func(text string) []string {
		if ok(text) {
			return nil
		}
		return []string{otherwise}
	}
}

func hostname(text string) []string {
	if strings.HasPrefix(text, "*.") {
		return validation.IsWildcardDNS1123Subdomain(text)
	}
	return validation.IsDNS1123Subdomain(text)
}

func isServerURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") &&
		u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

const (
	// resourcePattern matches a resource, optionally followed by a dot and its group.
	resourcePattern = `^[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// versionedPattern matches kubectl's resource.version.group, whose version looks like a group.
	versionedPattern = `^[^.]+\.v[0-9]+((alpha|beta)[0-9]+)?(\.|$)`
)

var (
	resourceText  = regexp.MustCompile(resourcePattern)
	versionedText = regexp.MustCompile(versionedPattern)
)

func resourceName(text string) []string {
	switch {
	case !resourceText.MatchString(text):
		return []string{"must be a plural resource name in lower case, with its group behind " +
			"a dot unless it is a core resource: pods, deployments.apps; there are no wildcards"}
	case versionedText.MatchString(text):
		return []string{"must not name a version, since it is about all of them: " +
			"pods, deployments.apps"}
	}
	return nil
}

func address(text string) []string {
	_, port, err := net.SplitHostPort(text)
	switch {
	case strings.HasPrefix(text, "unix:"):
		return []string{"must be host:port: Unix sockets are gone, because neither kubectl " +
			"nor client-go can connect to one"}
	case err != nil:
		return []string{"must be host:port"}
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return []string{"has no such port"}
	}
	return nil
}
