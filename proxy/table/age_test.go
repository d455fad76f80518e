package table

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watchproxy/watchproxy/bench/cachetest"
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
	return newRules(&object.Resource{
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
	custom := datesAt(".spec.interval:string", ".metadata.creationTimestamp")
	bare := newRules(&object.Resource{SelfDescribing: true, Columns: object.Columns{Defined: true, Definitions: definitions([]string{"Name", "Age:date"})}})
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
		"custom":                {custom, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"},"spec":{"interval":"5m"}}`, `"c","5m","60s"`, `"c","5m","61m"`},
		"custom, another date":  {custom, `{"metadata":{"creationTimestamp":"` + at(time.Hour) + `"},"spec":{"interval":"5m"}}`, `"c","5m","60s"`, ""},
		"custom, no definition": {newRules(&object.Resource{SelfDescribing: true, Columns: object.Columns{Definitions: definitions([]string{"Name", "Age:date"})}}), `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"c","60s"`, ""},
		"custom, bare":          {bare, `{"metadata":{"creationTimestamp":"` + at(time.Minute) + `"}}`, `"c","60s"`, `"c","61m"`},
	} {
		t.Run(name, func(t *testing.T) {
			const end = `],"conditions":[{"type":"Completed"}]`
			got, _, _, err := tc.rules.appendRow([]byte("before"), []byte(`{"cells":[`+tc.row+end), []byte(tc.object), now.Add(-past), now)
			switch want := `before{"cells":[` + tc.wants + end; {
			case tc.wants == "" && !errors.Is(err, errUnexplained):
				t.Errorf("%s, %v", got, err)
			case tc.wants != "" && (err != nil || string(got) != want):
				t.Errorf("%s, %v\nwant %s", got, err, want)
			}
		})
	}
}

// datesAt returns the rules of a custom resource with columns at these paths. They are columns of
// dates, unless a path is followed by a colon and another type.
func datesAt(paths ...string) *Rules {
	columns := []string{"Name"}
	for i, path := range paths {
		path, kind, typed := strings.Cut(path, ":")
		if !typed {
			kind = "date"
		}
		paths[i], columns = path, append(columns, fmt.Sprintf("At %d:%s", i, kind))
	}
	return newRules(&object.Resource{SelfDescribing: true, Columns: object.Columns{Defined: true, Definitions: definitions(columns), Paths: paths}})
}

// Upstream answers Tables of a custom resource that has a date other than the time of its creation.
func TestDatesLeftToUpstream(t *testing.T) {
	const creation = ".metadata.creationTimestamp"
	for _, path := range []string{
		"", ".spec.at", ".metadata.deletionTimestamp", "metadata.creationTimestamp", "$.metadata.creationTimestamp", ".metadata.creationTimestamp ", ".metadata['creationTimestamp']",
		".metadata.managedFields[0].time", ".status.conditions[?(@.type==\"Ready\")].lastTransitionTime", "..creationTimestamp",
	} {
		if datesAt(creation, path).Usable() {
			t.Errorf("%q is shown", path)
		}
	}
	for _, rules := range []*Rules{datesAt(creation), datesAt(creation, creation), datesAt(".spec.at:string", creation), datesAt("..at:string")} {
		if !rules.Usable() {
			t.Errorf("%v is left to upstream", rules.columns)
		}
	}
}

// After a row has not matched the rules, upstream answers Tables for five minutes.
func TestDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := object.Resource{Encoding: object.Table}
		row, err := r.ParseRow(gjson.Parse(`{"cells":["p","5m"],"object":{"metadata":{"name":"p","uid":"u","resourceVersion":"1"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		rules := rulesFor("", "pods", "Name", "Age")
		for range 3 {
			if !rules.Usable() {
				t.Fatal("not usable")
			}
			rules.doubt(row, errUnexplained)
			for _, usable := range []bool{false, true} {
				time.Sleep(restTime / 2)
				if rules.Usable() != usable {
					t.Errorf("usable: %t", !usable)
				}
			}
		}
	})
}

// A cell that looks like an age is recognized in all of upstream's forms of ages.
func TestAgesAreRecognized(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	for range 10_000 {
		text := duration.HumanDuration(time.Duration(random.Int64N(int64(20 * year))))
		if !object.LooksLikeAge(text) || !object.LooksLikeAge(text+" ago") || !object.LooksLikeAge("in "+text) || !object.LooksLikeAge("12 ("+text+" ago)") {
			t.Fatal(text)
		}
	}
	for _, text := range []string{"", "0", "12", "m", "5 m", "5M", "1/1", "10.0.0.1", "v1.36.3", "5mm", "s5", "<none>", "a (b ago)", "12345678901d"} {
		if object.LooksLikeAge(text) {
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
