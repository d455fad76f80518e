package watchcache

// Scope is what upstream has to look at for a list.
type Scope struct {
	Objects int  // at most
	Fields  bool // whether it selects by fields, for which upstream may have an index
}
