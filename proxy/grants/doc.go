// Package grants decides which namespaces a user may read.
//
// A view with namespaces: allowed shows a user the objects of all namespaces in which the user may
// do just what it asks for. Upstream decides that: it reviews each namespace that has objects.
// Package access remembers the decisions.
//
// # Watches
//
// A resourceVersion does not tell which namespaces were shown with it. So a watch begins with the
// state and is never resumed. Its user may list and watch what it shows. All watches of one user
// and collection share an era: the time in which no decision has changed. These invariants hold for
// a watch that began with the state S in an era:
//
//	E1 the namespaces with objects in S were decided in the era before the watch began
//	E2 if a decision of an era changes, the era is over, and with it all its watches
//	E3 the watch does not go past an event that it would show in a namespace without a decision,
//	   or with one that allows and does not count any more; it asks the era, and waits for it
//
// By E1 a namespace that is decided later has no objects in S. All its objects are events of the
// watch, and by E3 the watch shows all of them, or none if they are denied. By E3 nothing is shown
// for longer than cacheAuthorizedTTL after a revocation. An era also looks at its decisions again,
// slowly, so that watches end when there is more to show. An idle watch costs nothing.
//
// A watch reads events from the cache, then asks whether its era is over ([Watch.Over]), and only
// then writes the events. So a change that is known holds for all that is read afterwards.
package grants
