// Package unwritable decides which watches upstream must answer because of an object that a form
// cannot show.
//
// The cache cannot make the metadata of a few objects: upstream makes it from another version of
// the API (object.InternalMetadata), or it has fields that are not known here. A watch of metadata
// or of Tables ends at such an object. Its client watches again from the same resourceVersion, and
// would end at the same event. So [Events] remembers the event, and upstream answers all watches
// that would end at it. Upstream answers no other watch: otherwise one user's object would multiply
// the watches that the proxy opens upstream.
//
// A watch would end at an object that its filter selects, in two cases. Either the cache still has
// this version of the object: the initial state contains it, or the event of its deletion will. Or
// the object was written, deleted, or left the selection after the watch's start.
//
// Each version of an object counts alone, because the next version may be writable. If it is not,
// one more watch ends at it. References to objects and caches are weak, so they keep neither in
// memory.
package unwritable
