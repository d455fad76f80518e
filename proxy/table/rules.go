package table

import (
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Rules specify the cells of a resource's rows that are ages.
type Rules struct {
	columns []column
	custom  bool // cells are values of the object, except dates
	builtin bool // cells that are values of the object do not change with time
	// left is true if upstream answers all Tables, because a custom resource has other dates than
	// its creation.
	left bool
	// ID is the number of the rules. The rules of a later epoch or cache have a higher ID.
	ID    uint64
	epoch uint64
	clock *object.Clock
	// doubted is the time at which a row last did not match the rules; nil if all have matched.
	doubted atomic.Pointer[time.Time]
	log     *zap.Logger
}

// restTime is the time for which upstream answers Tables after a row did not match the rules. It is
// short because a row that was late does not match either. Each row is checked again after it.
const restTime = 5 * time.Minute

// Usable reports whether ages can be computed now, and all rows have matched the rules recently.
func (r *Rules) Usable() bool {
	_, right := r.clock.Now()
	return !r.left && right && !r.rests(time.Now())
}

func (r *Rules) rests(now time.Time) bool {
	at := r.doubted.Load()
	return at != nil && now.Sub(*at) < restTime
}

func (r *Rules) doubt(row *object.Object, reason error) {
	now := time.Now()
	if !r.rests(now) {
		r.log.Warn("a row does not match its rules; upstream answers Tables of the resource",
			zap.String("key", row.Key()), zap.Time("arrived", row.Row().Rendered()),
			zap.Duration("for", restTime), zap.Error(reason))
	}
	r.doubted.Store(&now)
}

type column struct {
	name string
	age  age
}

// age says since when a column's ages count.
type age uint8

const (
	noAge            age = iota // the cells do not change with time
	sinceCreation               // of the object
	sinceTermination            // of one of a pod's containers, at the latest
)

// forwarded has the resources whose Tables upstream must answer.
var forwarded = map[schema.GroupResource]bool{
	// They have a duration, or an age since another time than the object's creation.
	{Group: "batch", Resource: "jobs"}:                                     true,
	{Group: "batch", Resource: "cronjobs"}:                                 true,
	{Resource: "events"}:                                                   true,
	{Group: "events.k8s.io", Resource: "events"}:                           true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: true,
	{Group: "resource.k8s.io", Resource: "devicetaintrules"}:               true,
	{Group: "resource.k8s.io", Resource: "resourcepoolstatusrequests"}:     true,
	// Their rows in a list depend on the other objects, but a cache has rows of one kind only, from
	// watches or from lists. Upstream lists flowschemas in the order in which they are matched.
	// Since 1.37 it marks the default storageclass, but not in the rows of watches and gets.
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}: true,
	{Group: "storage.k8s.io", Resource: "storageclasses"}:            true,
}

// Forwarded reports whether upstream must answer all Tables of a resource.
func Forwarded(gr schema.GroupResource) bool { return forwarded[gr] }

func newRules(r *object.Resource) *Rules {
	rules := &Rules{
		custom:  r.SelfDescribing && r.Columns.Defined,
		builtin: scheme.Scheme.IsVersionRegistered(r.GVR.GroupVersion()),
		clock:   r.Columns.Clock,
		log:     zap.NewNop(),
	}
	pods := r.GVR.GroupResource() == schema.GroupResource{Resource: "pods"}
	for i, definition := range gjson.ParseBytes(r.Columns.Definitions).Array() {
		c := column{name: definition.Get("name").Str}
		date := rules.custom && definition.Get("type").Str == "date"
		switch {
		case date && showsCreation(r.Columns.Paths, i), rules.builtin && c.name == "Age":
			c.age = sinceCreation
		case date:
			rules.left = true
		case pods && c.name == "Restarts":
			c.age = sinceTermination
		}
		rules.columns = append(rules.columns, c)
	}
	return rules
}

// showsCreation reports whether a custom resource's column of dates shows the time of the object's
// creation. If a custom resource defines no columns, its second column does.
func showsCreation(paths []string, index int) bool {
	if len(paths) == 0 {
		return index == 1
	}
	return index > 0 && index <= len(paths) && paths[index-1] == ".metadata.creationTimestamp"
}

func created(object []byte) time.Time {
	t, _ := timestamp(gjson.GetBytes(object, "metadata.creationTimestamp").Str)
	return t
}

func timestamp(text string) (t time.Time, ok bool) {
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}

// terminated returns the last time at which one of a pod's relevant containers ended, by upstream's
// rules. While the pod initializes, those are its init containers up to the current one; after
// that, its containers and the init containers that restart.
func terminated(pod []byte) time.Time {
	restarts := map[string]bool{}
	gjson.GetBytes(pod, "spec.initContainers").ForEach(func(_, c gjson.Result) bool {
		restarts[c.Get("name").Str] = c.Get("restartPolicy").Str == "Always"
		return true
	})
	var before, after time.Time // before and after the pod is initialized
	late := func(of *time.Time, status gjson.Result) {
		t, ok := timestamp(status.Get("lastState.terminated.finishedAt").Str)
		if ok && t.After(*of) {
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
		initialized = ended.Exists() && ended.Get("exitCode").Int() == 0 ||
			again && status.Get("started").Bool()
		return initialized
	})
	condition := gjson.GetBytes(pod, `status.conditions.#(type=="Initialized").status`)
	if !initialized && condition.Str != "True" {
		return before
	}
	gjson.GetBytes(pod, "status.containerStatuses").ForEach(func(_, status gjson.Result) bool {
		late(&after, status)
		return true
	})
	return after
}
