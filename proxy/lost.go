package proxy

import (
	"fmt"
	"slices"
	"time"
)

const (
	// lostGrace is how long upstream may be away without anybody being told: streams
	// break now and then, and come back.
	lostGrace = time.Second
	// lostPatience is how long a read waits for an upstream that was lost.
	lostPatience = 5 * time.Second
)

// tolerate decides on a read that may be answered from a state which nobody keeps up to
// date. Those for the most recent state are upstream's, should it be there again.
func (s *Server) tolerate(r *read) error {
	age, lost := r.feed.Lost()
	switch {
	case !lost || age < lostGrace:
		return nil
	case s.options.Load().FailOnLoss, s.options.Load().MaxStaleness > 0 && age > s.options.Load().MaxStaleness, r.mostRecent():
		return Lost
	}
	text := fmt.Sprintf("watchproxy has not reached the apiserver for %s: this may be out of date", age.Truncate(time.Second))
	r.warnings = append(slices.Clip(r.warnings), fmt.Sprintf("299 - %q", text))
	return nil
}

// mostRecent tells whether a read asks for the most recent state.
func (r *read) mostRecent() bool { return !r.rvGiven && r.token == "" }
