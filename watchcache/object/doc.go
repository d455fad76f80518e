// Package object holds versions of Kubernetes objects as the bytes that upstream sent, in JSON or
// protobuf. It reads only the parts that a cache needs: key, resourceVersion, uid, labels, and the
// values of selectable fields.
//
// Objects are not decoded into Go types and encoded again, so new fields, new kinds and custom
// resources need no change here. In a protobuf message, the metadata is found by the field numbers
// in the tags of the API's Go types. A [Bookmark] is learnt from one of upstream's bookmarks and
// can then be written at any resourceVersion.
//
// The row of a Table is kept without its object, which another cache has. It takes some 400 bytes.
// A hash of the row's metadata is kept, to find out whether the object's metadata is the same.
// Upstream makes rows from its internal version of the API, which lacks some annotations that it
// writes into daemonsets and into horizontalpodautoscalers of autoscaling/v1. Their rows keep their
// own metadata.
package object
