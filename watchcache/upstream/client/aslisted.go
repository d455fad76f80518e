package client

import (
	"bytes"
	"reflect"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const internalPolicy = "spec.internalTrafficPolicy"

var (
	services         = corev1.SchemeGroupVersion.WithResource("services")
	serviceType, _   = object.NewWirePath(reflect.TypeFor[corev1.Service](), "spec.type")
	internalPath, _  = object.NewWirePath(reflect.TypeFor[corev1.Service](), internalPolicy)
	internalKey      = []byte(`"internalTrafficPolicy":`)
	typeExternalName = string(corev1.ServiceTypeExternalName)
)

// AsListed returns the object of a watch event as upstream shows it in gets and lists, so that the
// cache answers them with the same bytes.
//
// kube-apiserver leaves spec.internalTrafficPolicy out of services of type ExternalName, but not
// out of the events of present writes (defaultOnRead in pkg/registry/core/service/storage). Such
// services have the field if they had another type before.
func AsListed(r *object.Resource, src []byte) []byte {
	if r.GVR != services || !bytes.Contains(src, []byte(typeExternalName)) {
		return src
	}
	switch r.Encoding {
	case object.JSON:
		if gjson.GetBytes(src, "spec.type").Str == typeExternalName {
			return withoutMember(src, gjson.GetBytes(src, internalPolicy), internalKey)
		}
	case object.Protobuf:
		if serviceType.Value(src) == typeExternalName {
			return withoutField(src, internalPath.Numbers)
		}
	}
	return src
}

// withoutMember returns JSON without white space that lacks a member.
func withoutMember(src []byte, value gjson.Result, key []byte) []byte {
	before, ok := bytes.CutSuffix(src[:value.Index], key)
	if !ok {
		return src
	}
	after := src[value.Index+len(value.Raw):]
	if rest, more := bytes.CutPrefix(after, []byte(",")); more {
		after = rest
	} else {
		before = bytes.TrimSuffix(before, []byte(","))
	}
	return append(bytes.Clone(before), after...)
}

// withoutField returns a message that lacks the field at a path. A malformed one stays as it is.
func withoutField(message []byte, path []protowire.Number) []byte {
	kept := make([]byte, 0, len(message))
	for rest := message; len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		n := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
		if tag < 0 || n < 0 {
			return message
		}
		switch {
		case number != path[0], len(path) > 1 && kind != protowire.BytesType:
			kept = append(kept, rest[:tag+n]...)
		case len(path) > 1:
			inner, _ := protowire.ConsumeBytes(rest[tag:])
			kept = protowire.AppendBytes(append(kept, rest[:tag]...), withoutField(inner, path[1:]))
		}
		rest = rest[tag+n:]
	}
	return kept
}
