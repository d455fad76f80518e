package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// users fetches the report of users' resource usage. If the proxy refuses it, withheld contains the
// reason.
func users(ctx context.Context, base string) (report *metrics.UserReport, withheld string) {
	resp, body, err := get(ctx, base, "/users")
	if err != nil {
		return nil, err.Error()
	}
	switch resp.StatusCode {
	case http.StatusOK:
		report = new(metrics.UserReport)
		if err := json.Unmarshal(body, report); err != nil {
			return nil, fmt.Sprintf("%s/users: %v", base, err)
		}
		return report, ""
	case http.StatusNotFound:
		return nil, "this proxy is of a version that does not count them"
	}
	why, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return nil, cmp.Or(why, resp.Status)
}

// writeUsers writes the report of users' resource usage. A user's name may contain any characters,
// so it is quoted unless it is plain.
func (s *Status) writeUsers(w io.Writer) {
	if s.Users == nil {
		if s.usersWithheld != "" {
			fmt.Fprintf(w, "\nusers are not shown: %s\n", s.usersWithheld)
		}
		return
	}
	fmt.Fprintf(w, "\nUSER, LAST %d MIN\tREQUESTS\tREFUSED 429\tCONNECTIONS\tWATCHES\tPROCESSOR\tWAITED: PROCESSOR\tUPSTREAM\tMEMORY\n", s.Users.Minutes)
	row := func(name string, u *metrics.User) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, count(u.Requests), count(u.Limited), count(u.Connections), count(u.Watches),
			seconds(u.ProcessorSeconds), seconds(u.Waits.Processors), seconds(u.Waits.Upstream), seconds(u.Waits.Memory))
	}
	for _, u := range s.Users.Users {
		row(userName(u.Name), &u)
	}
	if n := s.Users.OthersCount; n > 0 {
		row(fmt.Sprintf("(%s others)", count(n)), &s.Users.Others)
	}
}

// userName returns a user's name for the report.
func userName(name string) string {
	if name == "" {
		return "(not authenticated)"
	}
	if quoted := fmt.Sprintf("%q", name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// seconds writes a duration in seconds or milliseconds.
func seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 1:
		return fmt.Sprintf("%.1f ms", s*float64(time.Second/time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", s)
}
