package watchcache

// Scope says how much work a list is for upstream.
type Scope struct {
	Objects int  // upper bound
	Fields  bool // the list selects by fields; upstream may have an index for that
}
