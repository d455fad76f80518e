// Package grants decides which namespaces a user may read, and since when.
//
// A view with namespaces: allowed shows a user the objects of all namespaces in which the user may do
// just what it asks for. Upstream decides that: it reviews each namespace that has objects. A [Set] is
// the outcome. [Grants] has the sets of one user for one collection, as long as they are used.
//
// # Since when
//
// A client lists at a resourceVersion and watches from there, or resumes a watch. But a
// resourceVersion does not tell which namespaces its sender was shown. If another one has been granted
// meanwhile, the watch would show only its changes, and never the objects that have not changed. So a
// set has a resourceVersion, Since: all states from Since on have been shown with this set. A watch
// from an earlier one ends with 410 (Expired), and its client lists again.
//
// When a set changes, open watches of the old one end at their next turn. The order of two steps makes
// Since correct:
//
//	Settle   publishes the new set, and then reads the cache's newest resourceVersion: Since is above it
//	a watch  reads events from the cache, then whether its set is still the present one ([Seen.Changed]),
//	         and only then writes the events
//
// If the watch finds its old set, its events are from before the publication, so below Since. No client
// has a position from Since on but what it knows differs from the set.
//
// Only grants matter, not how often they are reviewed: namespaces that were never decided are not
// shown, so a first refusal changes nothing.
//
// # Lists and watches
//
// A watch shows a namespace only if its user may list it, too. Clients usually list first. What a set of
// watches adds to the list's are only refusals, so a client that listed cannot lack objects. A list and a
// watch may have been decided at different times. So a watch ends when either set changes.
//
// # Limits
//
// Replicas decide by themselves, and so does a proxy that starts again: their sets may differ for the
// time for which decisions are used. A client that moves to another replica is sent back with 410,
// unless this one knows its user. Then it may keep its old view of namespaces whose grants have changed
// within that time, until it lists again.
package grants
