package metrics

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// reported returns the names in a report, in order.
func reported(r *UserReport) (names string) {
	for _, u := range r.Users {
		names += u.Name + " "
	}
	return strings.TrimSpace(names)
}

// A report covers five to six minutes. Users are ordered by their largest share of any figure, not
// only of requests.
func TestUsersAreRankedByTheirLargestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u Users
		for range 80 {
			u.Request("busy", false)
		}
		for range 20 {
			u.Request("quiet", true)
		}
		u.Turn("lister", int64(3*time.Second))
		u.Turn("quiet", int64(time.Second))
		u.Waiting(AtUpstream)("quiet", 250*time.Millisecond)
		u.Waiting(AtUpstream)("busy", 500*time.Millisecond)
		u.Waiting(AtProcessors)("busy", 500*time.Millisecond)
		u.Waiting(AtMemory)("busy", 500*time.Millisecond)
		open := map[string]int{"watcher": 90, "busy": 10}
		r := u.Report(map[string]int{"quiet": 2, "busy": 2}, open)
		if got := reported(r); got != "busy watcher lister quiet" {
			t.Errorf("order %q", got)
		}
		busy := User{Name: "busy", Requests: 80, Connections: 2, Watches: 10, Waits: Waits{0.5, 0.5, 0.5}}
		if r.Users[0] != busy {
			t.Errorf("got %+v, want %+v", r.Users[0], busy)
		}
		quiet := User{Name: "quiet", Requests: 20, Limited: 20, Connections: 2, ProcessorSeconds: 1, Waits: Waits{Upstream: 0.25}}
		if r.Users[3] != quiet || r.OthersCount != 0 || r.Others != (User{}) {
			t.Errorf("got %+v, want %+v", r, quiet)
		}
		time.Sleep(recentMinutes * time.Minute)
		u.Request("quiet", false)
		if r := u.Report(nil, nil); len(r.Users) != 3 || r.Users[0].Requests+r.Users[1].Requests+r.Users[2].Requests != 101 {
			t.Errorf("after %d minutes: %+v", recentMinutes, r)
		}
		time.Sleep(time.Minute)
		if r := u.Report(nil, open); reported(r) != "quiet watcher busy" || r.Users[0].Requests != 1 {
			t.Errorf("after %d minutes: %+v", recentMinutes+1, r)
		}
	})
}

// Users beyond the tenth are added up and not named. However many users there are, each request is
// counted.
func TestUsersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u Users
		const most = 5 * usersMost
		for i := range most {
			u.Request(fmt.Sprint(i), i%2 == 0)
			u.Turn(fmt.Sprint(i, strings.Repeat("x", userNameMost)), 1e6)
		}
		r := u.Report(nil, nil)
		sum := r.Others
		for i := range r.Users {
			sum.add(&r.Users[i])
		}
		if len(r.Users) != usersShown || r.OthersCount < usersMost-usersShown || r.Others.Name != "" ||
			sum.Requests != most || sum.Limited != most/2 || sum.ProcessorSeconds < 0.999e-3*most || sum.ProcessorSeconds > 1.001e-3*most {
			t.Errorf("%d users and %d others took %+v", len(r.Users), r.OthersCount, sum)
		}
		for _, user := range r.Users {
			if len(user.Name) > userNameMost {
				t.Errorf("a name of %d bytes", len(user.Name))
			}
		}
	})
}
