// Package wire writes the same bytes as kube-apiserver. It has all encodings and the choice between
// them, and uses neither caches nor HTTP servers. It converts the bytes of cached objects to the
// bytes of lists, objects and watch events, without decoding the objects.
//
//	Accept ─► Negotiate ─► Choice ─► Form: list, object, event, bookmark, error
//	pieces of a list ─► Segment ─► Gzip
//	events of a watch ─► EventSegment, Sum
//
// A [Form] writes JSON, protobuf, or PartialObjectMetadata in JSON or protobuf. It cuts metadata
// out of the object's bytes. It decodes metadata only for custom resources, for two reasons. Their
// keys are sorted, while PartialObjectMetadata has the order of a Go type. And custom resources
// have no protobuf. If metadata has unknown fields, upstream answers, so no field is lost.
//
// A form may show only some fields of the objects ([Choice].Fields, package projection).
//
// The API's own types encode the envelopes, once for each form, and the metadata of each list.
//
// The forms are those of kube-apiserver 1.37. Built-in types put kind and apiVersion first, and
// their list items have neither. Custom resources sort all keys, their items have kind and
// apiVersion, and their lists always have a continue member. A body and a watch event end with a
// newline, but an indented error does not. An empty PartialObjectMetadataList has null for its
// items.
//
// kube-apiserver sorts the clauses of an Accept header with goautoneg, whose comparison is not a
// consistent order: "*/*, application/yaml" selects YAML. This package uses the same library. Above
// twelve clauses the result depends on the sort algorithm, so upstream answers. kube-apiserver
// compresses a response above 128 KiB as a whole, even a streamed list.
package wire
