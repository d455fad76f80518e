package main

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

const (
	// logEvents is the maximum number of events in a log.
	logEvents = 100_000
	// feedIdleTimeout is how long a cache is kept without requests or open watches.
	feedIdleTimeout = 30 * time.Minute
	// maxProbes limits the proofs of freshness a second, each shared by all current readers. One
	// costs kube-apiserver and etcd 1 to 2 ms of processor time, with a list or watch much more.
	maxProbes = 400
)

func feedOptions(c config.Cache, namespace string) feed.Options {
	o := feed.Options{
		Limits: watchcache.Limits{
			Age:    c.Log.MaxAge.Duration,
			Events: logEvents,
			Bytes:  c.Log.MaxBytes.Value(),
		},
		OwnNamespace: namespace,
		IdleTimeout:  feedIdleTimeout,
		SelfCheck:    c.SelfCheckInterval.Duration,
		MaxProbes:    maxProbes,
		Ledger:       *c.ConsistentReads.Ledger,
		Resources:    map[schema.GroupResource]feed.ResourceOptions{},
	}
	for _, r := range c.Exclude {
		o.Excluded = append(o.Excluded, schema.ParseGroupResource(r))
	}
	for _, r := range c.Resources {
		o.Resources[schema.ParseGroupResource(r.Name)] = feed.ResourceOptions{
			ForwardConsistent: r.ConsistentReads == config.Forward,
			Aggregated:        r.Aggregated,
			MaxAge:            r.MaxAge.Duration,
		}
	}
	setScopes(&o, c.Scopes)
	return o
}

// setScopes sets the scopes of each resource, and of all other resources, the narrowest first.
func setScopes(o *feed.Options, configured []config.Scope) {
	o.Scopes = map[schema.GroupResource][]object.Scope{}
	for _, c := range configured {
		scopes := scopesIn(c)
		if len(c.Resources) == 0 {
			o.OtherScopes = append(o.OtherScopes, scopes...)
		}
		for _, name := range c.Resources {
			gr := schema.ParseGroupResource(name)
			o.Scopes[gr] = append(o.Scopes[gr], scopes...)
		}
	}
	for _, scopes := range o.Scopes {
		sortScopes(scopes)
	}
	sortScopes(o.OtherScopes)
}

func scopesIn(c config.Scope) (scopes []object.Scope) {
	namespaces := c.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		s, err := object.NewScope(namespace, c.FieldSelector, c.LabelSelector)
		if err != nil {
			panic(fmt.Sprintf("BUG: valid configuration: %v", err))
		}
		scopes = append(scopes, s)
	}
	return scopes
}

func warmFeeds(c config.Cache) (parts []upstream.Part) {
	for _, s := range c.Scopes {
		if !s.Warm {
			continue
		}
		for _, scope := range scopesIn(s) {
			for _, name := range s.Resources {
				gr := schema.ParseGroupResource(name)
				parts = append(parts, upstream.Part{Resource: gr, Scope: scope})
			}
		}
	}
	return parts
}

// sortScopes puts a scope before the scopes that contain it.
func sortScopes(scopes []object.Scope) {
	slices.SortStableFunc(scopes,
		func(a, b object.Scope) int { return requirements(b) - requirements(a) })
}

func requirements(s object.Scope) (n int) {
	if s.Namespace != "" {
		n++
	}
	fs, _ := fields.ParseSelector(s.Fields)
	ls, _ := labels.ParseToRequirements(s.Labels)
	return n + len(fs.Requirements()) + len(ls)
}
