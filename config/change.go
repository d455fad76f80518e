package config

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Fixed returns the paths of the fields that differ and cannot change while a proxy runs: those
// without the tag reload:"yes", and scopes with warm.
func Fixed(running, wanted *ProxyConfiguration) []string {
	fixed := differences(nil, reflect.ValueOf(*running), reflect.ValueOf(*wanted))
	if !reflect.DeepEqual(warm(running), warm(wanted)) {
		fixed = append(fixed, "cache.scopes[].warm")
	}
	return fixed
}

func warm(c *ProxyConfiguration) (scopes []Scope) {
	for _, s := range c.Cache.Scopes {
		if s.Warm {
			scopes = append(scopes, s)
		}
	}
	return scopes
}

func differences(path *field.Path, a, b reflect.Value) (paths []string) {
	for f, value := range a.Fields() {
		at, other := path.Child(nameOf(f)), b.FieldByIndex(f.Index)
		switch {
		case f.Tag.Get("reload") == "yes",
			equality.Semantic.DeepEqual(value.Interface(), other.Interface()):
		case isObject(f.Type):
			paths = append(paths, differences(at, value, other)...)
		default:
			paths = append(paths, at.String())
		}
	}
	return paths
}
