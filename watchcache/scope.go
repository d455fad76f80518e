package watchcache

// Scope estimates upstream's work for a list.
type Scope struct {
	Objects int  // upper bound
	Fields  bool // the list selects by fields; upstream may have an index for that
}
