package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	items := PathStep{Items: true}
	key := func(k string) PathStep { return PathStep{Key: k} }
	for text, want := range map[string]Path{
		"spec":                        {key("spec")},
		"spec.nodeName":               {key("spec"), key("nodeName")},
		"status.conditions[*].type":   {key("status"), key("conditions"), items, key("type")},
		"status.podIPs[*]":            {key("status"), key("podIPs"), items},
		"spec.a[*][*]":                {key("spec"), key("a"), items, items},
		`metadata.labels["a.b/c"]`:    {key("metadata"), key("labels"), key("a.b/c")},
		`metadata.labels['a.b/c']`:    {key("metadata"), key("labels"), key("a.b/c")},
		`metadata["labels"]['a/b-c']`: {key("metadata"), key("labels"), key("a/b-c")},
		`data['a"b'].c`:               {key("data"), key(`a"b`), key("c")},
		`data["it's [*] ]"][*]`:       {key("data"), key("it's [*] ]"), items},
		`data["*"]["0"][""]["a b"]`:   {key("data"), key("*"), key("0"), key(""), key("a b")},
		"spec.größe.$ref.x-y_z/1":     {key("spec"), key("größe"), key("$ref"), key("x-y_z/1")},
	} {
		p, err := ParsePath(text)
		if err != nil || !slices.Equal(p, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, p, err, want)
		}
	}
}

// An error says where the path is wrong.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "position 1: must begin",
		"$.spec":                    "position 1: must begin",
		"[*]":                       "position 1: must begin",
		"*":                         "position 1: must begin",
		" spec":                     "position 1: must begin",
		"spec.":                     "position 5: must be a step",
		"spec..nodeName":            "position 5: must be a step",
		"spec.containers[0].image":  "position 16: must be a step",
		"spec[":                     "position 5: must be a step",
		"spec.containers.*.image":   "position 16: must be a step",
		"spec.containers[*]image":   "position 19: must be a step",
		"metadata.labels[app]":      "position 16: must be a step",
		`metadata.labels["app]`:     "position 16: must be a step",
		`metadata.labels["app" ]`:   "position 16: must be a step",
		`spec"nodeName"`:            "position 5: must be a step",
		"spec]":                     "position 5: must be a step",
		"spec.nodeName, spec.other": "position 15: must be a step",
		"spec ":                     "position 5: must be a step",
	} {
		if p, err := ParsePath(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %s", text, p, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"spec.a[*].b", `a["b.c"]['d"e'].*`, "a[0]", "$.a", "", "a.\xff", "a[\"\xff\"]", `a["*"]["'"]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePath(text)
		if err != nil {
			return
		}
		if len(p) == 0 || p[0].Items {
			t.Errorf("%q is %+v, which does not begin with a name", text, p)
		}
	})
}
