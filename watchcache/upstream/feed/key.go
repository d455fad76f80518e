package feed

import (
	"fmt"
	"strings"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Key identifies a feed.
type Key struct {
	GVR      schema.GroupVersionResource
	Encoding object.Encoding
	Scope    object.Scope
}

// Sorted returns the parts of a key in sort order: group, version, resource, encoding, scope.
func (k Key) Sorted() []string {
	return []string{k.GVR.Group, k.GVR.Version, k.GVR.Resource, k.Encoding.String(), k.Scope.String()}
}

// String names the feed.
func (k Key) String() string {
	name := fmt.Sprintf("%s feed of %s", k.Encoding, k.GVR)
	if !k.Scope.Whole() {
		name += " in " + k.Scope.String()
	}
	return name
}

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (k Key) MarshalLogObject(line zapcore.ObjectEncoder) error {
	line.AddString("group", k.GVR.Group)
	line.AddString("version", k.GVR.Version)
	line.AddString("resource", k.GVR.Resource)
	line.AddString("encoding", k.Encoding.String())
	if !k.Scope.Whole() {
		line.AddString("scope", k.Scope.String())
	}
	return nil
}

// Clone returns a key that shares no memory with k.
func (k Key) Clone() Key {
	for _, s := range []*string{&k.GVR.Group, &k.GVR.Version, &k.GVR.Resource, &k.Scope.Namespace, &k.Scope.Fields, &k.Scope.Labels} {
		*s = strings.Clone(*s)
	}
	return k
}
