// Package object holds versions of Kubernetes objects as the bytes that upstream sent, in JSON or
// protobuf, and the parts that a cache needs: key, resourceVersion, uid, labels, and
// the values of selectable fields.
//
// Nothing is decoded into Go types and encoded again. New fields, new kinds and custom resources
// work unseen. The field numbers in the tags of the API's types locate the metadata of a protobuf
// message. A [Bookmark] is a form that was learnt from upstream and takes any resourceVersion.
package object
