// Package table makes the rows of Tables, which kubectl prints. Only upstream can make cells from
// an object. So a feed keeps upstream's cells for each version of each object, and this package
// joins these cells with the cached objects.
//
// Most cells depend only on the object. Ages also depend on the time. So this package computes each
// age again for the present time, from a timestamp in the object. [Rules] name the timestamp of
// each column. They follow kube-apiserver's [printers], but may be wrong. So the timestamp must
// explain upstream's cell: the cell's text must have been the timestamp's age when the row arrived,
// or up to a minute before.
//
// If the timestamp does not explain a cell that looks like an age, upstream answers all Tables of
// the resource for five minutes, or until the feed of the rows begins anew. So an apiserver with
// other columns, or a row that arrives late, causes cache misses but no wrong ages.
//
// Ages are only as accurate as this machine's clock. So an [object.Clock] compares this clock with
// the Date of each response of upstream. Ages are unknown while the clocks differ by more than
// [object.ClockSkew], and after a change of this machine's time, until the next comparison. Then no
// feed of rows starts, upstream answers all Tables, and a watch of Tables ends before its next row.
//
// A row that arrives while the clock is wrong gets a wrong arrival time. No age is computed from an
// arrival time, so the only effect is that a right timestamp may not explain the row's cell.
//
// A row belongs to an object if both have the same key, uid and resourceVersion. After a restore of
// etcd, such a row may still be from another history. So rows from another epoch of their cache are
// ignored. A hash of the row's metadata shows whether the object has the same metadata. Some rows
// keep upstream's own metadata instead (object.InternalMetadata).
//
//	resource  column                   timestamp
//	all       Age                      metadata.creationTimestamp
//	custom    of type date             the same: its JSONPath must be .metadata.creationTimestamp
//	pods      Restarts                 the last termination of a container: "3 (5m ago)"
//	others    of durations, of dates   none: upstream answers all Tables of the resource
//
// [printers]: https://github.com/kubernetes/kubernetes/tree/v1.37.2/pkg/printers/internalversion
package table
