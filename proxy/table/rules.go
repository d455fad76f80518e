package table

import (
	"bytes"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/watchcache/age"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Rules specify the cells of a resource's rows that are ages.
type Rules struct {
	columns []column
	custom  bool // cells are values of the object, except dates
	builtin bool // cells that are values of the object do not change with time
	// left is true if upstream answers all Tables, because the path of a date is not followed.
	left  bool
	dates int // columns of dates in custom resources
	// ID is the number of the rules. The rules of a later epoch or cache have a higher ID.
	ID    uint64
	epoch uint64
	clock *age.Clock
	// doubts are shared by the rules of all epochs of a cache.
	doubts *doubts
	log    *zap.Logger
}

// Usable reports whether ages can be computed now, and rows have matched the rules recently. It is
// always false if a custom resource has a date at a JSONPath that is not followed.
func (r *Rules) Usable() bool {
	_, right := r.clock.Now()
	return !r.left && right && r.doubts.allow(r.epoch, time.Now())
}

// column is the rule of a column. If since is nil, the column's cells do not change with time.
type column struct {
	name string
	// since returns the possible timestamps of the column's age. The first timestamp that explains
	// a cell is the right one.
	since func(object []byte) []time.Time
	// fixed reports whether an object's cell is a duration that does not grow; nil means that it
	// always grows.
	fixed func(object []byte) bool
}

// builtin has the rules of built-in resources by group, resource and column. The column Age is not
// listed, because almost all resources have it.
var builtin = map[schema.GroupResource]map[string]column{
	{Resource: "pods"}: {"Restarts": {since: terminations}},
	{Group: "batch", Resource: "jobs"}: {"Duration": {
		since: path("status.startTime"), fixed: func(o []byte) bool { return gjson.GetBytes(o, "status.completionTime").Exists() },
	}},
	{Group: "batch", Resource: "cronjobs"}:                                 {"Last Schedule": {since: path("status.lastScheduleTime")}},
	{Resource: "events"}:                                                   events,
	{Group: "events.k8s.io", Resource: "events"}:                           events,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: {"RequestedDuration": {fixed: always}},
	{Group: "resource.k8s.io", Resource: "devicetaintrules"}:               {"TimeAdded": {since: path("spec.taint.timeAdded")}},
	{Group: "resource.k8s.io", Resource: "resourcepoolstatusrequests"}:     {"Completed": {since: path(`status.conditions.#(type=="Complete").lastTransitionTime`)}},
}

// dependent has the resources whose rows in a list depend on the other objects. Upstream lists
// flowschemas in the order in which they are matched. Since 1.37 it marks the default among
// storageclasses, but not in the rows of watches and gets.
var dependent = map[schema.GroupResource]bool{
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}: true,
	{Group: "storage.k8s.io", Resource: "storageclasses"}:            true,
}

// Dependent reports whether the rows of a resource depend on other objects. Upstream must answer all of
// its Tables, because a cache has rows of one kind only, from watches or from lists.
func Dependent(gr schema.GroupResource) bool { return dependent[gr] }

// events has the rules for both versions of events. They have the same cells, but different names
// for the same timestamps.
var events = map[string]column{
	"Last Seen":  {since: path("series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp", "firstTimestamp", "deprecatedFirstTimestamp", "eventTime")},
	"First Seen": {since: path("firstTimestamp", "deprecatedFirstTimestamp", "eventTime")},
	"Type":       {fixed: always}, "Reason": {fixed: always}, "Object": {fixed: always}, "Subobject": {fixed: always},
	"Source": {fixed: always}, "Message": {fixed: always}, "Name": {fixed: always}, // any texts
}

func always([]byte) bool { return true }

// New returns the rules for the rows of a resource.
func New(r *object.Resource) *Rules {
	rules := &Rules{custom: r.SelfDescribing && r.Columns.Defined, builtin: scheme.Scheme.IsVersionRegistered(r.GVR.GroupVersion()), clock: r.Columns.Clock, doubts: &doubts{}, log: zap.NewNop()}
	own := builtin[r.GVR.GroupResource()]
	for i, definition := range gjson.ParseBytes(r.Columns.Definitions).Array() {
		name := definition.Get("name").Str
		c := column{name: name}
		switch rule, known := own[name]; {
		case rules.custom && definition.Get("type").Str == "date":
			rules.addDate(c, r.Columns.Paths, i)
			continue
		case rules.custom:
		case known:
			c.since, c.fixed = rule.since, rule.fixed
		case name == "Age" && rules.builtin:
			c.since = path(created)
		}
		rules.columns = append(rules.columns, c)
	}
	return rules
}

// terminations returns the last time at which one of a pod's relevant containers ended, by
// upstream's rules. While the pod initializes, the relevant containers are its init containers up
// to the current one. After that, the relevant containers are its containers and the init
// containers that restart.
func terminations(pod []byte) []time.Time {
	restarts := map[string]bool{}
	gjson.GetBytes(pod, "spec.initContainers").ForEach(func(_, c gjson.Result) bool {
		restarts[c.Get("name").Str] = c.Get("restartPolicy").Str == "Always"
		return true
	})
	var before, after time.Time // before and after the pod is initialized
	late := func(of *time.Time, status gjson.Result) {
		if t, ok := timestamp(status.Get("lastState.terminated.finishedAt").Str); ok && t.After(*of) {
			*of = t
		}
	}
	initialized := true
	gjson.GetBytes(pod, "status.initContainerStatuses").ForEach(func(_, status gjson.Result) bool {
		late(&before, status)
		again := restarts[status.Get("name").Str]
		if again {
			late(&after, status)
		}
		ended := status.Get("state.terminated")
		initialized = ended.Exists() && ended.Get("exitCode").Int() == 0 || again && status.Get("started").Bool()
		return initialized
	})
	if !initialized && gjson.GetBytes(pod, `status.conditions.#(type=="Initialized").status`).Str != "True" {
		return []time.Time{before}
	}
	gjson.GetBytes(pod, "status.containerStatuses").ForEach(func(_, status gjson.Result) bool {
		late(&after, status)
		return true
	})
	return []time.Time{after}
}

// isValue reports whether a text is among an object's values. Such a cell is not an age.
func isValue(object []byte, quoted string) bool { return bytes.Contains(object, []byte(quoted)) }
