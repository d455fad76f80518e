package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
)

func viewsOf(configured []config.View) map[string]*exchange.View {
	views := map[string]*exchange.View{}
	for _, c := range configured {
		v := &exchange.View{Name: c.Name, Allowed: c.Namespaces == config.AllowedNamespaces}
		switch {
		case len(c.Fields) > 0:
			v.Fields = projection.Keep(pathsOf(c.Fields))
		case len(c.Drop) > 0:
			v.Fields = projection.Drop(pathsOf(c.Drop))
		}
		for _, name := range c.Resources {
			v.Resources = append(v.Resources, schema.ParseGroupResource(name))
		}
		views[c.Name] = v
	}
	return views
}

func pathsOf(texts []string) (all []projection.Path) {
	for _, text := range texts {
		parsed, err := config.ParsePath(text)
		if err != nil {
			panic(fmt.Sprintf("BUG: valid configuration: %v", err))
		}
		var p projection.Path
		for _, s := range parsed {
			p = append(p, projection.Step(s))
		}
		all = append(all, p)
	}
	return all
}
