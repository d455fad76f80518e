package allowed

import (
	"sync"
	"time"
)

// slack is the time after a revocation within which a watch may still show a namespace, if nothing
// proves that it knows of the revocation. Here the test does not judge time; TestLongWalk does.
var slack = time.Hour

// ledger has the rights that users have had, with times.
type ledger struct {
	sync.Mutex
	spans map[right]*span
}

// right is the right to read a namespace.
type right struct{ user, namespace string }

// span is the last time in which a user had a right. Earlier ones do not matter.
type span struct {
	has     bool
	revoked bool      // but perhaps still used by the apiserver
	end     time.Time // when the apiserver had stopped to use it
	closed  bool      // the user's watches have been without it since
}

func (l *ledger) of(r right) *span {
	if l.spans == nil {
		l.spans = map[right]*span{}
	}
	if l.spans[r] == nil {
		l.spans[r] = &span{closed: true}
	}
	return l.spans[r]
}

// grant is called before the right is given.
func (l *ledger) grant(r right) {
	l.Lock()
	defer l.Unlock()
	*l.of(r) = span{has: true}
}

// revoke is called after the right has been removed.
func (l *ledger) revoke(r right) {
	l.Lock()
	defer l.Unlock()
	*l.of(r) = span{revoked: true}
}

// settle is called when the apiserver uses all changes.
func (l *ledger) settle() {
	l.Lock()
	defer l.Unlock()
	for _, s := range l.spans {
		if s.revoked {
			s.revoked, s.end = false, time.Now()
		}
	}
}

// close is called when all watches of all users have what their users may read. From now on none
// may show a namespace that had objects and that its user may not read: the watch began without it.
func (l *ledger) close(populated map[string]bool) {
	l.Lock()
	defer l.Unlock()
	for r, s := range l.spans {
		if !s.has && !s.revoked && populated[r.namespace] {
			s.closed = true
		}
	}
}

// has reports whether the user has the right now.
func (l *ledger) has(r right) bool {
	l.Lock()
	defer l.Unlock()
	return l.of(r).has
}

// mayShow reports whether a watch of the user may show the namespace now.
func (l *ledger) mayShow(r right) bool {
	l.Lock()
	defer l.Unlock()
	s := l.of(r)
	return s.has || s.revoked || !s.closed && time.Since(s.end) < slack
}

// closed returns the number of revoked rights that no watch may show any more.
func (l *ledger) closed() (n int) {
	l.Lock()
	defer l.Unlock()
	for _, s := range l.spans {
		if s.closed && !s.end.IsZero() {
			n++
		}
	}
	return n
}
