// Package derived computes data from the cache's pages once and keeps the results: metadata in
// another form, compressed segments, and the objects that match selectors. It also writes lists
// from pages, without a copy of any object.
//
//	Store       data made from pages (pieces), kept by ristretto within a budget of bytes
//	Selection   the objects of each page that match a selector
//	List        a list of whole pages and pieces
//	AddedEvents the first events of a watch, in compressed segments
//	OneOff      a list that is compressed for one request while it is written
//
// A compressed segment may refer to the end of the run before it, so its key names the pages of the
// segment and of this run. A list in segments is therefore no larger than a list that is compressed
// as a whole.
//
// The first two lists with a selector check each object. Later lists only look up each page. This
// is faster, because the check of an object mostly waits for the object's memory.
package derived
