package client

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// TestAsListed compares with the encoding of a service without the field. At the real apiserver,
// TestServiceBecomesExternalName (bench/conformance) does so.
func TestAsListed(t *testing.T) {
	policy, near := corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceTrafficDistributionPreferClose
	encoders := map[object.Encoding]func(*corev1.Service) ([]byte, error){
		object.JSON:     func(s *corev1.Service) ([]byte, error) { return json.Marshal(s) },
		object.Protobuf: func(s *corev1.Service) ([]byte, error) { return s.Marshal() },
	}
	for _, c := range []struct {
		name, resource string
		spec           corev1.ServiceSpec
		cut            bool
	}{
		{"last in JSON", "services", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "e"}, true},
		{"before another field", "services", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, TrafficDistribution: &near}, true},
		{"another type", "services", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ExternalName: "ExternalName"}, false},
		{"another resource", "endpoints", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}, false},
	} {
		for encoding, encode := range encoders {
			with := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"internalTrafficPolicy": "ExternalName"}}, Spec: c.spec}
			without := *with.DeepCopy()
			with.Spec.InternalTrafficPolicy = &policy
			src, err := encode(&with)
			if err != nil {
				t.Fatal(err)
			}
			want, err := encode(&without)
			if err != nil {
				t.Fatal(err)
			}
			if !c.cut {
				want = src
			}
			r := &object.Resource{GVR: corev1.SchemeGroupVersion.WithResource(c.resource), Encoding: encoding}
			before := slices.Clone(src)
			if got := AsListed(r, src); !bytes.Equal(got, want) || !bytes.Equal(src, before) {
				t.Errorf("%s, %s: %q, want %q", c.name, encoding, got, want)
			}
			if got := AsListed(r, want); !bytes.Equal(got, want) {
				t.Errorf("%s, %s: %q, want it as it is", c.name, encoding, got)
			}
		}
	}
}

// Fields of another kind stay, so that the parser sees them.
func TestAsListedKeepsOtherKinds(t *testing.T) {
	const spec, specType, policy = 2, 4, 22
	inner := protowire.AppendString(protowire.AppendTag(nil, specType, protowire.BytesType), "ExternalName")
	with := protowire.AppendString(protowire.AppendTag(slices.Clone(inner), policy, protowire.BytesType), "Cluster")
	other := protowire.AppendVarint(protowire.AppendTag(nil, spec, protowire.VarintType), 300)
	message := func(of []byte) []byte {
		return append(slices.Clone(other), protowire.AppendBytes(protowire.AppendTag(nil, spec, protowire.BytesType), of)...)
	}
	r := &object.Resource{GVR: services, Encoding: object.Protobuf}
	if got, want := AsListed(r, message(with)), message(inner); !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Bytes that are no service stay as they are, and are refused later.
func FuzzAsListed(f *testing.F) {
	f.Add([]byte(`{"spec":{"type":"ExternalName","internalTrafficPolicy":"Cluster"}}`))
	f.Add([]byte("\x12\x1a\x22\x0cExternalName\xb2\x01\x07Cluster\x12"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, encoding := range []object.Encoding{object.JSON, object.Protobuf} {
			r := &object.Resource{GVR: services, Encoding: encoding}
			if got := AsListed(r, src); len(got) > len(src) {
				t.Errorf("%s: %q becomes %q", encoding, src, got)
			}
		}
	})
}
