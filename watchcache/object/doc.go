// Package object holds versions of Kubernetes objects as the bytes that upstream sent, in JSON or
// in protobuf, and what a cache has to know of them: key, resourceVersion, uid, labels, and
// the values of selectable fields.
//
// Nothing is decoded into Go types and encoded again. New fields, new kinds and custom resources
// work unseen. The metadata of a protobuf message is read by the field numbers in the tags of the
// API's types. A [Bookmark] is a form that was learnt from upstream and takes any resourceVersion.
package object
