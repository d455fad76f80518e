package watchcache

// Work estimates upstream's work for a list.
type Work struct {
	Objects int  // upper bound
	Fields  bool // the list has a field selector, for which upstream may have an index
}
