// Package object keeps versions of Kubernetes objects as the bytes that upstream sent, in JSON or
// protobuf. It reads only the parts that a cache needs: key, resourceVersion, uid, labels, and the
// values of selectable fields.
//
// Objects are not decoded into Go types and encoded again. So new fields, new kinds and custom
// resources need no changes here. In a protobuf message, the package finds the metadata by the
// field numbers in the tags of the API's Go types.
//
// The row of a Table is kept without its object, because another cache has the object. A row uses
// some 400 bytes. It includes a hash of the row's metadata, which shows whether the object's
// metadata is the same. The rows of resources whose objects have other metadata keep their own, see
// [InternalMetadata].
package object
