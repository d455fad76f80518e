// Package object holds versions of Kubernetes objects as the bytes that upstream sent, in JSON or
// protobuf, and the parts that a cache needs: key, resourceVersion, uid, labels, and
// the values of selectable fields.
//
// Nothing is decoded into Go types and encoded again. So new fields, new kinds and custom resources
// need no change here. The field numbers in the tags of the API's types locate the metadata of a
// protobuf message. A [Bookmark] is learnt from one of upstream's bookmarks and can then be written
// at any resourceVersion.
package object
