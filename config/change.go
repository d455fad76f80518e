package config

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Fixed returns the paths of the fields that differ and cannot change while a proxy runs.
func Fixed(running, wanted *ProxyConfiguration) []string {
	masked := *wanted
	masked.LogLevel, masked.Drain = running.LogLevel, running.Drain
	masked.GoawayChance, masked.WatchCompression = running.GoawayChance, running.WatchCompression
	masked.AccessLogSampling = running.AccessLogSampling
	masked.Authorization.WatchRecheckInterval = running.Authorization.WatchRecheckInterval
	l, r := &masked.Limits, &running.Limits
	l.MaxConnections, l.MaxWatchesPerIdentity = r.MaxConnections, r.MaxWatchesPerIdentity
	selfCheck := masked.Cache.SelfCheckInterval
	masked.Cache = running.Cache
	masked.Cache.SelfCheckInterval = selfCheck
	fixed := differences(nil, reflect.ValueOf(*running), reflect.ValueOf(masked))
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
		case equality.Semantic.DeepEqual(value.Interface(), other.Interface()):
		case isObject(f.Type):
			paths = append(paths, differences(at, value, other)...)
		default:
			paths = append(paths, at.String())
		}
	}
	return paths
}
