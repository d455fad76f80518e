package feed

import (
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Owner identifies a resource. All versions of a resource have the same Owner, because they show
// the same objects. The zero Owner is no resource.
type Owner = unique.Handle[schema.GroupResource]

// OwnerOf returns the Owner of a resource. The two names of events are one resource.
func OwnerOf(r schema.GroupResource) Owner {
	if r.Group == "events.k8s.io" && r.Resource == "events" {
		r.Group = ""
	}
	return unique.Make(r)
}

// Ledger records which resource has used each revision of etcd (package fresh).
type Ledger interface {
	// Note records that a resource has used revisions. It fails if another has used one of them.
	Note(o Owner, rvs ...uint64) error
	// Forget is called if the etcd may have changed.
	Forget()
}

// Highest is the highest revision in a watch so far, or the one from which it starts. If upstream
// is itself a proxy, it may have relisted. It then gives all deletions that the relist found the
// same revision: the last revision before the relist. That revision may belong to any resource. So
// a revision counts only if it is above all earlier revisions in the watch.
type Highest uint64

// Reached records an event or a bookmark. It reports whether an event at rv counts.
func (s *Highest) Reached(rv uint64) bool {
	above := rv > uint64(*s)
	*s = max(*s, Highest(rv))
	return above
}
