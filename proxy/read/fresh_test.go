package read

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lostFeed is a feed that has lost upstream.
type lostFeed struct {
	Feed
	away time.Duration
}

// Lost implements Feed.
func (f *lostFeed) Lost() (time.Duration, bool) { return f.away, f.away > 0 }

// silence is the time since upstream has answered feeds at all.
type silence struct {
	Feeds
	since time.Duration
}

// Lost implements Feeds.
func (s silence) Lost(schema.GroupVersionResource) time.Duration { return s.since }

// A read from an out-of-date cache gets a warning with the age, up to a maximum age. If
// configuration says so, the read fails instead. Reads of the most recent state are forwarded.
func TestAllowStale(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		away    time.Duration
		refused bool
		change  func(*read)
		fails   bool
		says    string
	}{
		"there":            {},
		"just gone":        {away: LostGrace / 2, options: Options{MaxStaleness: time.Millisecond}},
		"gone":             {away: 90 * time.Second, says: "has not followed the apiserver for 1m30s:"},
		"refuses":          {away: 90 * time.Second, refused: true, says: "for 1m30s, as it answers with errors:"},
		"gone, within":     {away: time.Hour, options: Options{MaxStaleness: time.Hour}, says: "for 1h0m0s:"},
		"gone too long":    {away: time.Hour + 1, options: Options{MaxStaleness: time.Hour}, fails: true},
		"gone, is to fail": {away: LostGrace, options: Options{MaxStaleness: time.Millisecond}, fails: true},
		"most recent":      {away: time.Minute, change: func(r *read) { r.RVGiven = false }, fails: true},
		"a further page":   {away: time.Minute, change: func(r *read) { r.RVGiven, r.Token = false, "x" }, says: "for 1m0s:"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := pageOf(t, 1, 0)
			r.RVGiven, r.feed, r.warnings = true, &lostFeed{away: c.away}, []string{"299 - \"deprecated\""}
			if c.change != nil {
				c.change(r)
			}
			feeds := silence{since: c.away}
			if c.refused {
				feeds.since = 0
			}
			rd := New(Config{Feeds: feeds}, c.options)
			err := rd.allowStale(&r.plan, &r.source)
			if errors.Is(err, Lost) != c.fails || !c.fails && err != nil {
				t.Errorf("%v", err)
			}
			said := strings.Join(r.warnings[1:], "")
			if c.says == "" && said != "" || !strings.Contains(said, c.says) {
				t.Errorf("it says %q", said)
			}
		})
	}
}
