package table

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watchproxy/watchproxy/watchcache/age"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// moments returns each second of a day, and the seconds around each change of unit.
func moments() (ages []time.Duration) {
	for s := -5 * time.Second; s < day; s += time.Second {
		ages = append(ages, s)
	}
	for _, around := range []time.Duration{2 * day, 8 * day, 2 * year, 3 * year, 8 * year, 9 * year, 400 * day, 100 * day} {
		for s := -3 * time.Second; s <= 3*time.Second; s += time.Second {
			ages = append(ages, around+s)
		}
	}
	return ages
}

// At each second of a day and at each change of unit, an age has upstream's text. It stays the same
// for the time that appendRow returns, and no longer unless its unit changes.
func TestAgesFollowTheClock(t *testing.T) {
	created := time.Date(2020, 2, 28, 12, 0, 0, 0, time.UTC)
	obj := fmt.Appendf(nil, `{"metadata":{"name":"p","creationTimestamp":%q}}`, created.Format(time.RFC3339))
	rules := rulesFor("", "pods", "Name", "Age")
	arrived := created.Add(90 * time.Second)
	row := []byte(`{"cells":["p","90s"]`)
	for _, age := range moments() {
		got, end, lasts, err := rules.appendRow(nil, row, obj, arrived, created.Add(age))
		want := duration.HumanDuration(age)
		if text := gjson.GetBytes(append(got, '}'), "cells.1").Str; err != nil || text != want {
			t.Fatalf("after %v: %s instead of %s, %v", age, got, want, err)
		}
		if string(got[end:]) != "]" {
			t.Fatalf("after %v, the last age ends before %q", age, got[end:])
		}
		if last := duration.HumanDuration(age + lasts - 1); last != want && age >= 0 {
			t.Fatalf("after %v, %s lasts for %v, but becomes %s", age, want, lasts, last)
		}
		if lasts <= 0 || lasts > time.Second && duration.HumanDuration(age+lasts) == want && age < 10*time.Minute {
			t.Fatalf("after %v, %s lasts longer than %v", age, want, lasts)
		}
	}
}

func rulesFor(group, resource string, columns ...string) *Rules {
	return New(&object.Resource{
		GVR: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Columns: object.Columns{Definitions: definitions(columns)},
	})
}

// definitions returns column definitions. A name may be followed by a colon and a type.
func definitions(columns []string) []byte {
	var all []string
	for _, c := range columns {
		name, kind, typed := strings.Cut(c, ":")
		if !typed {
			kind = "string"
		}
		all = append(all, fmt.Sprintf(`{"name":%q,"type":%q}`, name, kind))
	}
	return []byte("[" + strings.Join(all, ",") + "]")
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }

// Each rule is applied to a row that arrived an hour ago.
func TestRules(t *testing.T) {
	const past = time.Hour
	at := func(d time.Duration) string { return ago(d + past) }
	pods := rulesFor("", "pods", "Name", "Restarts", "Age")
	jobs := rulesFor("batch", "jobs", "Name", "Duration")
	lateEvents := rulesFor("", "events", "Last Seen", "Name", "First Seen")
	custom := New(&object.Resource{
		GVR: schema.GroupVersionResource{Group: "e.c", Version: "v1", Resource: "gauges"}, SelfDescribing: true,
		Columns: object.Columns{
			Defined: true, Definitions: definitions([]string{"Name", "Interval", "Last:date", "Next:date"}),
			Paths: []string{".spec.interval", ".spec.last", `.metadata.annotations.e\.c/next`},
		},
	})
	bare := New(&object.Resource{SelfDescribing: true, Columns: object.Columns{Defined: true, Definitions: definitions([]string{"Name", "Age:date"})}})
	for name, tc := range map[string]struct {
		rules              *Rules
		object, row, wants string // wants is empty if no timestamp explains the cell
	}{
		"age":                        {pods, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"p","0","60s"`, `"p","0","61m"`},
		"age, no timestamp":          {pods, `{"metadata":{}}`, `"p","0","\u003cunknown\u003e"`, `"p","0","\u003cunknown\u003e"`},
		"age, wrong clock":           {pods, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"p","0","75s"`, ""},
		"age, late arrival":          {pods, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"p","0","51s"`, `"p","0","61m"`},
		"age, in the future":         {pods, `{"metadata":{"creationTimestamp":"` + at(-time.Minute) + `"}}`, `"p","0","\u003cinvalid\u003e"`, `"p","0","59m"`},
		"age, wrongly in the future": {pods, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"p","0","\u003cinvalid\u003e"`, ""},
		"text beyond the cells":      {pods, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"p","0","60s"],"5m":["1m"`, `"p","0","61m"],"5m":["1m"`},
		"name like an age":           {pods, `{"metadata":{"name":"5m"}}`, `"5m","0","\u003cunknown\u003e"`, `"5m","0","\u003cunknown\u003e"`},
		"no such column":             {rulesFor("", "pods", "Name", "Idle"), `{"metadata":{"name":"p"}}`, `"p","5m"`, ""},
		"time of an alpha resource":  {rulesFor("lifecycle.k8s.io", "evictions", "Name", "Responder Heartbeat"), `{"metadata":{"name":"p"}}`, `"p","5m ago"`, ""},
		"time to come":               {rulesFor("lifecycle.k8s.io", "evictions", "Name", "Responder Expected Finish"), `{"metadata":{"name":"p"}}`, `"p","in 5m"`, ""},
		"column of a value":          {rulesFor("", "leases", "Name", "Holder"), `{"spec":{"holder":"5m"}}`, `"p","5m"`, `"p","5m"`},
		"cell beyond":                {rulesFor("", "ipaddresses", "Name"), `{"metadata":{"creationTimestamp":"` + at(0) + `"}}`, `"p","0s"`, `"p","60m"`},
		"restarts": {
			pods, `{"status":{"containerStatuses":[{"lastState":{"terminated":{"finishedAt":"` + at(7*time.Hour) + `"}}},{"lastState":{"terminated":{"finishedAt":"` + at(3*time.Hour) + `"}}}]}}`,
			`"p","5 (3h ago)",null`, `"p","5 (4h ago)",null`,
		},
		"restarts of init containers only": {
			pods, `{"status":{"initContainerStatuses":[{"lastState":{"terminated":{"finishedAt":"` + at(7*time.Hour) + `"}}}],"containerStatuses":[{"lastState":{"terminated":{"finishedAt":"` + at(3*time.Hour) + `"}}}]}}`,
			`"p","5 (7h ago)",null`, `"p","5 (8h ago)",null`,
		},
		"restarts in the future": {
			pods, `{"status":{"containerStatuses":[{"lastState":{"terminated":{"finishedAt":"` + at(-time.Minute) + `"}}}]}}`,
			`"p","5 (\u003cinvalid\u003e ago)",null`, `"p","5 (59m ago)",null`,
		},
		"restarts, unexplained": {pods, `{"status":{}}`, `"p","5 (3h ago)",null`, ""},
		"job that runs":         {jobs, `{"status":{"startTime":"` + at(time.Minute) + `"}}`, `"j","60s"`, `"j","61m"`},
		"job that is complete":  {jobs, `{"status":{"startTime":"` + at(2*time.Hour) + `","completionTime":"` + at(time.Hour) + `"}}`, `"j","60m"`, `"j","60m"`},
		"job that is new":       {jobs, `{"status":{}}`, `"j",""`, `"j",""`},
		"requested duration":    {rulesFor("certificates.k8s.io", "certificatesigningrequests", "Name", "RequestedDuration"), `{"spec":{"expirationSeconds":86400}}`, `"c","24h"`, `"c","24h"`},
		"event with a series":   {lateEvents, `{"series":{"lastObservedTime":"` + at(time.Minute) + `"},"eventTime":"` + at(2*time.Hour) + `"}`, `"60s","n","120m"`, `"61m","n","3h"`},
		"message of an event":   {rulesFor("events.k8s.io", "events", "Message"), `{"note":"5m "}`, `"5m"`, `"5m"`},
		"old event":             {lateEvents, `{"firstTimestamp":"` + at(2*time.Hour) + `","lastTimestamp":"` + at(time.Minute) + `","eventTime":null}`, `"60s","n","120m"`, `"61m","n","3h"`},
		"custom": {
			custom, `{"metadata":{"annotations":{"e.c/next":"` + at(2*time.Hour) + `"}},"spec":{"interval":"5m","last":"` + at(time.Minute) + `"}}`,
			`"c","5m","60s","120m"`, `"c","5m","61m","3h"`,
		},
		"custom, without dates": {custom, `{"spec":{"last":"tomorrow"}}`, `"c","5m","\u003cinvalid\u003e",null`, `"c","5m","\u003cinvalid\u003e",null`},
		"custom, bare":          {bare, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"c","60s"`, `"c","61m"`},
	} {
		t.Run(name, func(t *testing.T) {
			const end = `],"conditions":[{"type":"Completed"}]`
			got, _, _, err := tc.rules.appendRow([]byte("before"), []byte(`{"cells":[`+tc.row+end), []byte(tc.object), now.Add(-past), now)
			switch want := `before{"cells":[` + tc.wants + end; {
			case tc.wants == "" && !errors.Is(err, ErrUnexplained):
				t.Errorf("%s, %v", got, err)
			case tc.wants != "" && (err != nil || string(got) != want):
				t.Errorf("%s, %v\nwant %s", got, err, want)
			}
		})
	}
}

// A cell that looks like an age is recognized in all of upstream's forms of ages.
func TestAgesAreRecognized(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	for range 10_000 {
		text := duration.HumanDuration(time.Duration(random.Int64N(int64(20 * year))))
		if !age.LooksLike(text) || !age.LooksLike(text+" ago") || !age.LooksLike("in "+text) || !age.LooksLike("12 ("+text+" ago)") {
			t.Fatal(text)
		}
	}
	for _, text := range []string{"", "0", "12", "m", "5 m", "5M", "1/1", "10.0.0.1", "v1.36.3", "5mm", "s5", "<none>", "a (b ago)", "12345678901d"} {
		if age.LooksLike(text) {
			t.Errorf("%q", text)
		}
	}
}

// Whatever a row contains, the result is a row, and nothing is added to its other parts.
func FuzzRow(f *testing.F) {
	f.Add(`["p","5m"]`, `{"metadata":{"creationTimestamp":"2026-01-02T03:00:00Z"}}`)
	f.Add(`["p",null,{"a":[1,"]"]},"60m"]`, `{}`)
	rules := rulesFor("", "pods", "Name", "Age", "Restarts")
	f.Fuzz(func(t *testing.T, cells, obj string) {
		if !gjson.Valid(cells) || !gjson.Parse(cells).IsArray() || !gjson.Valid(obj) {
			return
		}
		row := `{"cells":` + strings.TrimSpace(cells)
		got, end, _, err := rules.appendRow(nil, []byte(row), []byte(obj), now, now.Add(time.Hour))
		if err != nil {
			return
		}
		if !gjson.Valid(string(got)+"}") || end > len(got) || !strings.HasSuffix(row, string(got[end:])) {
			t.Fatalf("%s from %s", got, row)
		}
		if was, is := gjson.Parse(cells).Array(), gjson.GetBytes(append(got, '}'), "cells").Array(); len(was) != len(is) {
			t.Fatalf("%d cells instead of %d", len(is), len(was))
		}
	})
}
