package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// User counts the requests and resources of one user, or of several users together, in the last
// minutes.
type User struct {
	// Name is empty for requests before authentication. It is empty for all requests if the proxy
	// does not authenticate its clients.
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Limited  int64  `json:"limited"` // requests refused with 429, also counted in Requests
	// Connections and Watches are the numbers that are open now. Forwarded watches count, too.
	Connections int `json:"connections"`
	Watches     int `json:"watches"`
	// ProcessorSeconds is the estimated time of the turns of expensive reads. Cheap reads need no
	// turn.
	ProcessorSeconds float64 `json:"processorSeconds"`
	Waits            Waits   `json:"waitSeconds"`
}

// Waits are the total seconds for which a user's requests waited for their turns.
type Waits struct {
	Processors float64 `json:"processors"`
	Upstream   float64 `json:"upstream"`
	Memory     float64 `json:"memory"`
}

// UserReport names the users with the highest use. It contains personal data.
type UserReport struct {
	Minutes int `json:"minutes"` // minutes covered, in addition to the present minute
	// Users are ordered by their largest share of any figure, the largest share first.
	Users []User `json:"users"`
	// Others is the sum of all other users. No report names them.
	Others      User `json:"others"`
	OthersCount int  `json:"othersCount"` // a lower bound
}

const (
	// usersShown limits the users that a report names.
	usersShown = 10
	// usersMost limits the users that are counted separately in a minute. Further users are counted
	// together, among the others.
	usersMost = 4096
	// userNameMost limits the length of a name, in bytes. Users whose names begin with the same
	// userNameMost bytes are counted together.
	userNameMost = 256
)

// Users counts requests, turns and waits of each user by the minute. It drops old minutes.
type Users struct {
	mu struct {
		sync.RWMutex
		minutes [recentMinutes + 1]minute
	}
}

type minute struct {
	at   int64 // minutes since 1970
	by   map[string]*taken
	rest *taken // sum of the users beyond usersMost
}

type taken struct {
	requests, limited, processors atomic.Int64 // processors in nanoseconds
	waits                         [waitingPlaces]atomic.Int64
}

// Place is a place where requests wait for their user's turn.
type Place int

// The places where requests wait.
const (
	AtProcessors Place = iota
	AtUpstream
	AtMemory
	waitingPlaces
)

// Request counts an answered request.
func (u *Users) Request(user string, limited bool) {
	t := u.of(user)
	t.requests.Add(1)
	if limited {
		t.limited.Add(1)
	}
}

// Waiting returns a function that adds a wait at a place.
func (u *Users) Waiting(at Place) func(user string, took time.Duration) {
	return func(user string, took time.Duration) { u.of(user).waits[at].Add(int64(took)) }
}

// Turn adds the estimated cost of a turn at the processors, in nanoseconds.
func (u *Users) Turn(user string, cost int64) { u.of(user).processors.Add(cost) }

// of returns a user's counts in the present minute.
func (u *Users) of(user string) *taken {
	user = shortName(user)
	at := time.Now().Unix() / secondsOfMinute
	slot := &u.mu.minutes[at%int64(len(u.mu.minutes))]
	u.mu.RLock()
	t := slot.by[user]
	current := slot.at == at
	u.mu.RUnlock()
	if current && t != nil {
		return t
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if slot.at != at || slot.by == nil {
		*slot = minute{at: at, by: map[string]*taken{}, rest: new(taken)}
	}
	if t = slot.by[user]; t == nil {
		if len(slot.by) >= usersMost {
			return slot.rest
		}
		t = new(taken)
		slot.by[strings.Clone(user)] = t
	}
	return t
}

const secondsOfMinute = int64(time.Minute / time.Second)

func shortName(user string) string { return user[:min(len(user), userNameMost)] }

// Report returns the counts of the last minutes. connections and watches are the numbers that each
// user has open now.
func (u *Users) Report(connections, watches map[string]int) *UserReport {
	users := map[string]*User{}
	find := func(name string) *User {
		name = shortName(name)
		if users[name] == nil {
			users[name] = &User{Name: name}
		}
		return users[name]
	}
	var rest User
	oldest := time.Now().Unix()/secondsOfMinute - recentMinutes
	u.mu.RLock()
	for i := range u.mu.minutes {
		m := &u.mu.minutes[i]
		if m.at < oldest || m.rest == nil {
			continue
		}
		for name, t := range m.by {
			find(name).count(t)
		}
		rest.count(m.rest)
	}
	u.mu.RUnlock()
	for name, n := range connections {
		find(name).Connections += n
	}
	for name, n := range watches {
		find(name).Watches += n
	}
	return rank(users, rest)
}

// rank orders the users by their largest share of any figure. It adds up the users that are not
// shown.
func rank(users map[string]*User, rest User) *UserReport {
	sum := rest
	sum.Name = ""
	for _, user := range users {
		sum.add(user)
	}
	shown := make([]User, 0, len(users))
	shares := make(map[string]float64, len(users))
	all := sum.figures()
	for name, user := range users {
		for i, figure := range user.figures() {
			if all[i] > 0 {
				shares[name] = max(shares[name], figure/all[i])
			}
		}
		shown = append(shown, *user)
	}
	slices.SortFunc(shown, func(a, b User) int {
		return cmp.Or(cmp.Compare(shares[b.Name], shares[a.Name]), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	report := &UserReport{Minutes: recentMinutes, Users: shown[:min(len(shown), usersShown)], Others: rest}
	for _, user := range shown[len(report.Users):] {
		report.Others.add(&user)
		report.OthersCount++
	}
	if rest.Requests > 0 {
		report.OthersCount++
	}
	return report
}

func (user *User) count(t *taken) {
	user.Requests += t.requests.Load()
	user.Limited += t.limited.Load()
	user.ProcessorSeconds += time.Duration(t.processors.Load()).Seconds()
	for place, seconds := range user.Waits.all() {
		*seconds += time.Duration(t.waits[place].Load()).Seconds()
	}
}

func (user *User) add(other *User) {
	user.Requests += other.Requests
	user.Limited += other.Limited
	user.Connections += other.Connections
	user.Watches += other.Watches
	user.ProcessorSeconds += other.ProcessorSeconds
	others := other.Waits.all()
	for place, seconds := range user.Waits.all() {
		*seconds += *others[place]
	}
}

// figures returns the figures by which users are ranked.
func (user *User) figures() []float64 {
	return []float64{
		float64(user.Requests), float64(user.Connections), float64(user.Watches), user.ProcessorSeconds,
		user.Waits.Processors, user.Waits.Upstream, user.Waits.Memory,
	}
}

// all returns the waits, indexed by place.
func (w *Waits) all() [waitingPlaces]*float64 {
	return [...]*float64{AtProcessors: &w.Processors, AtUpstream: &w.Upstream, AtMemory: &w.Memory}
}
