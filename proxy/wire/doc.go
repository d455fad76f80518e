// Package wire writes the bytes that kube-apiserver would write. It owns all encodings and the
// choice between them, and knows neither caches nor HTTP servers. It turns the bytes of cached
// objects into those of lists, objects and watch events, without decoding them.
//
//	Accept ─► Negotiate ─► Choice ─► Form: list, object, event, bookmark, error
//	                          └────► Render: indented JSON, YAML
//	pieces of a list ─► Segment ─► Gzip
//
// A [Form] writes JSON, protobuf, or PartialObjectMetadata in either. It cuts metadata out of the
// object's bytes. Only the metadata of custom resources is decoded: their keys are sorted, unlike
// those of PartialObjectMetadata, and they have no protobuf. Metadata with unknown fields is left
// to upstream, so that none is dropped.
//
// No protobuf field number is written by hand: the API's own types make envelopes, tags and list
// metadata, once for each form.
//
// The forms are those of kube-apiserver 1.36. Built-in types put kind and apiVersion first, and
// their list items have neither. Custom resources sort all keys, their items have both, and their
// lists always have a continue member. A body and a watch event end with a newline, but indented
// JSON and YAML do not. An empty PartialObjectMetadataList has null for its items.
//
// kube-apiserver sorts the clauses of an Accept header by a rule that is no order ("*/*,
// application/yaml" gives YAML); the same library does so here. Above twelve clauses the result
// depends on the sort algorithm, so upstream answers. It compresses answers above 128 KiB as a
// whole, streamed lists included.
package wire
