package read

import (
	"fmt"
	"slices"
	"time"
)

// LostGrace is how long upstream may be away without anybody being told: streams
// break now and then, and come back.
const LostGrace = time.Second

// tolerate decides on a read that may be answered from a state which nobody keeps up to
// date. Those for the most recent state are upstream's, should it be there again.
func (rd *Reader) tolerate(r *read) error {
	age, lost := r.feed.Lost()
	switch {
	case !lost || age < LostGrace:
		return nil
	case rd.Options().FailOnLoss, rd.Options().MaxStaleness > 0 && age > rd.Options().MaxStaleness, r.mostRecent():
		return Lost
	}
	text := fmt.Sprintf("watchproxy has not reached the apiserver for %s: this may be out of date", age.Truncate(time.Second))
	r.warnings = append(slices.Clip(r.warnings), fmt.Sprintf("299 - %q", text))
	return nil
}

// mostRecent tells whether a read asks for the most recent state.
func (r *read) mostRecent() bool { return !r.rvGiven && r.token == "" }
