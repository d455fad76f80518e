// Package derived computes data from the cache's pages once and keeps it: metadata in another form,
// compressed segments, and the objects that selectors select. It also writes lists from pages,
// without a copy of any object.
//
//	Store       data made from pages (pieces), kept by ristretto within a budget of bytes
//	Selection   which objects of each page a selector selects
//	List        a list of whole pages and pieces
//	OneOff      a list that is indented or compressed for one request while it is written
//
// A compressed segment may refer to the end of the run before it, so its key names the pages of
// both. A list in segments is therefore no larger than a list that is compressed as a whole.
//
// The first two lists by a selector look at each object. Later lists only look at each page. This
// is faster, because a look at each object mostly waits for the object's memory.
package derived
