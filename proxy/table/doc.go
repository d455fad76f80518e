// Package table makes the rows of Tables, which kubectl prints. Only upstream knows how to make
// cells from an object. So a feed keeps the cells that upstream made for each version of each
// object, and this package joins them with the cached objects.
//
// Most cells depend on nothing but the object. Ages do not: they grow. A cell that tells an age is
// written anew for the present time, from a timestamp in the object. Which timestamp that is, a
// [Rules] knows for each column. It does not trust its knowledge: a cell is only written anew if
// the timestamp also explains what upstream wrote when the row arrived. A cell that looks like an
// age and that nothing explains makes upstream answer all Tables of the resource for a minute. So an
// apiserver with other columns costs cache hits, but shows no wrong age. The clock of the proxy must
// not differ from upstream's by more than a few seconds; a feed of rows does not start otherwise.
//
// A hash of the metadata shows whether a row is that of the object, and not of another history after
// a restore of etcd. Rows of another epoch of their cache do not count.
//
//	resource        column          timestamp
//	all             Age             metadata.creationTimestamp
//	pods            Restarts        the last termination of a container: "3 (5m ago)"
//	jobs            Duration        status.startTime, until the job is complete
//	cronjobs        Last Schedule   status.lastScheduleTime
//	events          Last Seen       series.lastObservedTime, lastTimestamp, or the first one
//	                First Seen      firstTimestamp or eventTime
//	custom          of type date    the column's JSONPath
//
// [upstream's printers]: https://github.com/kubernetes/kubernetes/tree/v1.36.3/pkg/printers/internalversion
package table
