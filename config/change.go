package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Fixed compares two configurations. It returns the paths of the different fields that cannot
// change while a proxy runs.
func Fixed(running, wanted *ProxyConfiguration) []string {
	masked := *wanted
	masked.LogLevel, masked.Drain, masked.GoawayChance = running.LogLevel, running.Drain, running.GoawayChance
	masked.WatchCompression = running.WatchCompression
	masked.AccessLogSampling, masked.Profiling = running.AccessLogSampling, running.Profiling
	masked.SlowRequestThreshold = running.SlowRequestThreshold
	masked.Authorization.WatchRecheckInterval = running.Authorization.WatchRecheckInterval
	l, r := &masked.Limits, &running.Limits
	l.MaxURIBytes, l.MaxRequestBodyBytes, l.WriteTimeout = r.MaxURIBytes, r.MaxRequestBodyBytes, r.WriteTimeout
	l.MaxConnections, l.MaxConnectionsPerIdentity, l.MaxWatchesPerIdentity = r.MaxConnections, r.MaxConnectionsPerIdentity, r.MaxWatchesPerIdentity
	selfCheck := masked.Cache.SelfCheckInterval
	masked.Cache = running.Cache
	masked.Cache.SelfCheckInterval = selfCheck
	fixed := differences("", fieldsOf(running), fieldsOf(&masked))
	if !reflect.DeepEqual(warm(running), warm(wanted)) {
		fixed = append(fixed, "cache.scopes[].warm")
	}
	return fixed
}

// warm returns the scopes whose caches are filled at the start.
func warm(c *ProxyConfiguration) (scopes []Scope) {
	for _, s := range c.Cache.Scopes {
		if s.Warm {
			scopes = append(scopes, s)
		}
	}
	return scopes
}

// fieldsOf returns the fields of a configuration by their names in the file.
func fieldsOf(c *ProxyConfiguration) map[string]any {
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("BUG: configuration: %v", err))
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		panic(fmt.Sprintf("BUG: configuration: %v", err))
	}
	return all
}

func differences(path string, a, b map[string]any) (paths []string) {
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		at := name
		if path != "" {
			at = path + "." + name
		}
		inA, aHasMore := a[name].(map[string]any)
		inB, bHasMore := b[name].(map[string]any)
		switch {
		case aHasMore && bHasMore:
			paths = append(paths, differences(at, inA, inB)...)
		case !reflect.DeepEqual(a[name], b[name]):
			paths = append(paths, at)
		}
	}
	return paths
}
