package object

import "k8s.io/apimachinery/pkg/runtime/schema"

// The resources that most tests use: two built-in ones and a custom one.
var (
	pods = &Resource{
		GVR:        schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		Kind:       "Pod",
		ListKind:   "PodList",
		Namespaced: true,
		Fields: []Field{
			{Name: "spec.nodeName", Paths: []string{"spec.nodeName"}, Kept: true},
			{Name: "status.phase", Paths: []string{"status.phase"}},
		},
	}
	nodes = &Resource{
		GVR:      schema.GroupVersionResource{Version: "v1", Resource: "nodes"},
		Kind:     "Node",
		ListKind: "NodeList",
	}
	widgets = &Resource{
		GVR:            schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		Kind:           "Widget",
		ListKind:       "WidgetList",
		Namespaced:     true,
		SelfDescribing: true,
		Fields:         []Field{{Name: "spec.color", Paths: []string{"spec.color"}}},
	}
)
