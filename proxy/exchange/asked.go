package exchange

import (
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Asked is the part of a read that is authorized.
type Asked struct {
	Route
	Path   string
	Labels labels.Selector
	Fields fields.Selector
}

// Attributes returns the attributes that the apiserver authorizes for a user's read.
func (r Asked) Attributes(u user.Info) authorizer.Attributes {
	a := &authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, Name: r.Name,
		APIGroup: r.GVR.Group, APIVersion: r.GVR.Version, Resource: r.GVR.Resource,
		ResourceRequest: true, Path: r.Path,
	}
	if r.Name != "" {
		return a // a get ignores selectors
	}
	if r.Fields != nil {
		a.FieldSelectorRequirements = r.Fields.Requirements()
		name, ok := r.Fields.RequiresExactMatch("metadata.name")
		if ok && len(content.IsPathSegmentName(name)) == 0 {
			a.Name = name
		}
	}
	if r.Labels != nil {
		a.LabelSelectorRequirements, _ = r.Labels.Requirements()
	}
	return a
}
