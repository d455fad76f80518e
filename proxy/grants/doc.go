// Package grants decides which namespaces a user may read, and since when.
//
// A view with namespaces: allowed shows a user the objects of all namespaces in which the user may
// do just what it asks for. Upstream decides that: it reviews each namespace that has objects. A
// set of namespaces is the outcome. [Grants] has the sets of one user for one collection, as long
// as they are used.
//
// # Known pasts
//
// A client lists at a resourceVersion and watches from there, or resumes a watch. But a
// resourceVersion does not tell which namespaces were shown with it. If another one has been
// granted meanwhile, the watch would show only its changes, and never the objects that have not
// changed. So a watch goes on only if its past is known. Otherwise it ends with 410 (Expired), and
// its client lists again. The past is known from Since on, if one of these holds:
//
//	issued   the set was shown at just this resourceVersion, usually by the list before the watch
//	settled  the set has been the present one for longer than decisions count, those that allow and
//	         those that deny, so no replica can have shown another one; and no other identity of the
//	         user (with other groups, for example) has been shown another one, whose place this
//	         client may have taken
//
// Denials may count for longer than their TTL ([Book.denyTTL]). Replicas are taken to have about as
// many decisions as this proxy.
//
// When a set changes, open watches of the old one end at their next turn. The order of two steps
// makes Since correct:
//
//	Settle   publishes the new set, and then reads the cache's newest resourceVersion: Since is above it
//	a watch  reads events from the cache, then whether its set is the present one ([Seen.Changed]),
//	         and only then writes the events
//
// If the watch finds its old set, its events are from before the publication, so below Since.
//
// # Lists and watches
//
// A watch shows a namespace only if its user may list it, too: clients usually list first. The two
// may have been decided at different times. So a watch ends when either set changes, or when a
// decision that allows ends without renewal.
package grants
