package watchcache

// Scope is the work of a list for upstream.
type Scope struct {
	Objects int  // upper bound
	Fields  bool // the list selects by fields; upstream may have an index for that
}
