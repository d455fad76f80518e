// Package wire writes the bytes that kube-apiserver would write. It owns every
// encoding and the choice between them, and knows nothing of caches or HTTP
// servers: it turns the bytes of kept objects into the bytes of lists, objects
// and watch events, without decoding them.
//
//	Accept ─► Negotiate ─► Choice ─► Form: list, object, event, bookmark, error
//	                          └────► Render: indented JSON, YAML
//	pieces of a list ─► Segment ─► Gzip
//
// A [Form] writes JSON, protobuf, or PartialObjectMetadata in either. Metadata is
// cut out of an object as it stands there. Only that of custom resources has to be
// decoded: its keys are sorted where PartialObjectMetadata's are not, and it has no
// protobuf form to be cut from. What it holds beyond the fields that are known here
// is not dropped: upstream has to write it.
//
// No number of a protobuf field is written here by hand: envelopes, tags and list
// metadata are made by the API's own types, once for each form.
//
// The forms were read off kube-apiserver 1.36: built-in types put kind and
// apiVersion first, and the items of their lists have neither; custom resources
// sort all keys, their items carry both, and their lists always have a continue
// member. A body ends with a newline, as does each watch event; indented JSON and
// YAML do not. An empty PartialObjectMetadataList has null for its items.
//
// kube-apiserver sorts the clauses of an Accept header by a rule that is no order
// ("*/*, application/yaml" gives YAML), which the same library does here; beyond
// twelve clauses the outcome depends on the sorting algorithm, so those are upstream's.
// It compresses what is longer than 128 KiB as a whole, streamed lists too.
package wire
