// Package wire writes the bytes that kube-apiserver would write. It owns all encodings and the
// choice between them, and knows neither caches nor HTTP servers. It turns the bytes of cached
// objects into the bytes of lists, objects and watch events. It does so without decoding the
// objects.
//
//	Accept ─► Negotiate ─► Choice ─► Form: list, object, event, bookmark, error
//	                          └────► Render: indented JSON, YAML
//	pieces of a list ─► Segment ─► Gzip
//
// A [Form] writes JSON, protobuf, or PartialObjectMetadata in either. It cuts metadata out of the
// object's bytes. Only for custom resources does it decode the metadata, for two reasons. Their
// keys are sorted, but the keys of PartialObjectMetadata are not. And custom resources have no
// protobuf. If metadata has unknown fields, upstream answers, so no field is lost.
//
// No protobuf field number is written by hand. The API's own types encode the envelopes, tags and
// list metadata, once for each form.
//
// The forms are those of kube-apiserver 1.36. Built-in types put kind and apiVersion first, and
// their list items have neither. Custom resources sort all keys, their items have both, and their
// lists always have a continue member. A body and a watch event end with a newline, but indented
// JSON and YAML do not. An empty PartialObjectMetadataList has null for its items.
//
// kube-apiserver sorts the clauses of an Accept header with goautoneg. The library's comparison is
// not a consistent order: "*/*, application/yaml" gives YAML. This package uses the same library.
// Above twelve clauses the result depends on the sort algorithm, so upstream answers.
// kube-apiserver compresses an answer above 128 KiB as a whole, even a streamed list.
package wire
