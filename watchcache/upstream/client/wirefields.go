package client

import (
	"reflect"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// messages are the Go types of the resources with additional field labels. The tags of their fields
// contain the field numbers. No object is decoded into these types.
var messages = map[schema.GroupVersionResource]reflect.Type{
	corev1.SchemeGroupVersion.WithResource("pods"):                                reflect.TypeFor[corev1.Pod](),
	corev1.SchemeGroupVersion.WithResource("nodes"):                               reflect.TypeFor[corev1.Node](),
	corev1.SchemeGroupVersion.WithResource("namespaces"):                          reflect.TypeFor[corev1.Namespace](),
	corev1.SchemeGroupVersion.WithResource("secrets"):                             reflect.TypeFor[corev1.Secret](),
	corev1.SchemeGroupVersion.WithResource("services"):                            reflect.TypeFor[corev1.Service](),
	corev1.SchemeGroupVersion.WithResource("replicationcontrollers"):              reflect.TypeFor[corev1.ReplicationController](),
	corev1.SchemeGroupVersion.WithResource("events"):                              reflect.TypeFor[corev1.Event](),
	batchv1.SchemeGroupVersion.WithResource("jobs"):                               reflect.TypeFor[batchv1.Job](),
	eventsv1.SchemeGroupVersion.WithResource("events"):                            reflect.TypeFor[eventsv1.Event](),
	certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"):  reflect.TypeFor[certificatesv1.CertificateSigningRequest](),
	certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles"):         reflect.TypeFor[certificatesv1.ClusterTrustBundle](),
	certificatesv1beta1.SchemeGroupVersion.WithResource("clustertrustbundles"):    reflect.TypeFor[certificatesv1beta1.ClusterTrustBundle](),
	certificatesv1alpha1.SchemeGroupVersion.WithResource("clustertrustbundles"):   reflect.TypeFor[certificatesv1alpha1.ClusterTrustBundle](),
	certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"):      reflect.TypeFor[certificatesv1.PodCertificateRequest](),
	certificatesv1beta1.SchemeGroupVersion.WithResource("podcertificaterequests"): reflect.TypeFor[certificatesv1beta1.PodCertificateRequest](),
	resourcev1.SchemeGroupVersion.WithResource("resourceslices"):                  reflect.TypeFor[resourcev1.ResourceSlice](),
	resourcev1beta1.SchemeGroupVersion.WithResource("resourceslices"):             reflect.TypeFor[resourcev1beta1.ResourceSlice](),
	resourcev1beta2.SchemeGroupVersion.WithResource("resourceslices"):             reflect.TypeFor[resourcev1beta2.ResourceSlice](),
}

// OnTheWire adds the protobuf paths of field labels' values. For protobuf, it drops labels without
// a known path. Upstream then answers requests with these labels.
func OnTheWire(gvr schema.GroupVersionResource, fields []object.Field, encoding object.Encoding) []object.Field {
	if encoding != object.Protobuf {
		return fields
	}
	message, known := messages[gvr]
	for i := range fields {
		for _, path := range fields[i].Paths {
			if !known {
				break
			}
			if wire, ok := object.NewWirePath(message, path); ok {
				fields[i].Wire = append(fields[i].Wire, wire)
			}
		}
	}
	return slices.DeleteFunc(fields, func(f object.Field) bool { return len(f.Paths) > 0 && len(f.Wire) == 0 })
}
