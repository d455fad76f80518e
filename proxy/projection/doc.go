// Package projection cuts objects to some of their fields. It does not decode them: the fields that
// stay keep upstream's bytes.
//
//	paths ─► Keep, Drop ─► Projection ─► Append: one object in JSON
//	                            │   └──► Reader: an answer of upstream in JSON, while it arrives
//	                            └──────► Message ─► Append: one object in protobuf
//
// An object above a field stays, even if nothing in it stays: a pod without IPs still has its
// status, as {}. So does null. All objects in a list stay, so that indexes keep their meaning. If a
// path leads below a string, a number or a boolean, Keep drops this value, and Drop keeps it.
//
// In an answer, the objects are cut wherever they are: as items of a list, in watch events, and in
// the rows of a Table. Bookmarks and errors of a watch stay whole.
//
// A [Message] has the field numbers that the paths lead to, from the tags of the API's Go types.
// Decoded, a cut message has the same fields as the cut JSON. There is no Message if a path leads
// into a value that has other parts in protobuf than in JSON, such as FieldsV1 and quantities, or
// to a field that the Go type lacks: a newer apiserver may have it, by an unknown number.
package projection
