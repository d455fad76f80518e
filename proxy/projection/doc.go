// Package projection cuts JSON objects to some of their fields. It does not decode them: the fields
// that stay keep upstream's bytes.
//
//	paths ─► Keep, Drop ─► Projection ─► Append: one object
//	                            └──────► Reader: an answer of upstream, while it arrives
//
// An object above a field stays, even if nothing in it stays: a pod without IPs still has its
// status, as {}. So does null. All objects in a list stay, so that indexes keep their meaning. If a
// path leads below a string, a number or a boolean, Keep drops this value, and Drop keeps it.
//
// In an answer, the objects are cut wherever they are: as items of a list, in watch events, and in
// the rows of a Table. Bookmarks and errors of a watch stay whole.
package projection
