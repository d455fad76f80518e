// Package derived keeps what is made of the cache's pages once: metadata in another form,
// compressed segments, and the objects that selectors select. It also writes lists from pages,
// without a copy of any object.
//
//	Store       pieces of pages, kept by ristretto within a budget of bytes
//	Selection   which objects of each page a selector selects
//	List        a list of whole pages and pieces
//	OneOff      a list that is indented or compressed for one request while it is written
//
// A compressed segment may refer to the end of the run before it, and is kept under both pages. So
// a list in segments is no larger than a list that is compressed as a whole.
//
// A list by a selector looks at each object twice, and from its third time on at each page. Waiting
// for the objects' memory takes most of the time, not comparing.
package derived
