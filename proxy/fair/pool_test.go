package fair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// claim is a claim on a pool, and what has become of it.
type claim struct {
	user  string
	size  int64
	leave context.CancelFunc
	mu    struct {
		sync.Mutex
		done bool
		err  error
	}
}

func (k *claim) state() (done bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.done, k.mu.err
}

func (k *claim) granted() bool {
	done, err := k.state()
	return done && err == nil
}

// enter makes a claim, and returns it when it waits or has ended.
func enter(t *testing.T, p *Pool, user string, size int64) *claim {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	k := &claim{user: user, size: size, leave: cancel}
	go func() {
		err := p.Take(ctx, user, size)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.mu.done, k.mu.err = true, err
	}()
	synctest.Wait()
	return k
}

// rules is a pool that follows the rules in Pool's comment literally. It looks at all users each time.
type rules struct {
	capacity, free int64
	shared         bool
	held           map[string]int64
	waits          map[string][]*claim // by user, in order of arrival
	turns, greedy  []string            // users with waiting claims, see Pool
}

func (r *rules) may(user string, size int64) bool {
	return !r.shared || r.held[user] == 0 || r.held[user]+size <= r.free-size
}

func (r *rules) take(user string, size int64) bool {
	if size > r.free || !r.may(user, size) {
		return false
	}
	r.held[user] += size
	r.free -= size
	return true
}

// queue puts a user at the end of a list, if it has waiting claims.
func (r *rules) queue(user string, in *[]string) {
	is := func(name string) bool { return name == user }
	r.turns, r.greedy = slices.DeleteFunc(r.turns, is), slices.DeleteFunc(r.greedy, is)
	if len(r.waits[user]) > 0 {
		*in = append(*in, user)
	} else {
		delete(r.waits, user)
	}
}

// serve grants claims in turn, and returns them.
func (r *rules) serve() (granted []*claim) {
	for len(r.turns) > 0 {
		user := r.turns[0]
		k := r.waits[user][0]
		switch {
		case !r.may(user, k.size):
			r.queue(user, &r.greedy)
			continue
		case !r.take(user, k.size):
			return granted
		}
		r.waits[user] = r.waits[user][1:]
		r.queue(user, &r.turns)
		granted = append(granted, k)
	}
	return granted
}

func (r *rules) enter(k *claim) (granted []*claim) {
	if len(r.waits[k.user]) == 0 && len(r.turns) == 0 && r.take(k.user, k.size) {
		return []*claim{k}
	}
	if r.waits[k.user] = append(r.waits[k.user], k); len(r.waits[k.user]) == 1 {
		r.queue(k.user, &r.turns)
	}
	return r.serve()
}

// leave withdraws a waiting claim. If it has held others up, its user's next claim has a new turn.
func (r *rules) leave(k *claim) []*claim {
	first := r.waits[k.user][0] == k
	held := slices.Contains(r.greedy, k.user) || r.turns[0] == k.user && r.free > 0
	r.waits[k.user] = slices.DeleteFunc(slices.Clone(r.waits[k.user]), func(other *claim) bool { return other == k })
	if first && held || len(r.waits[k.user]) == 0 {
		r.queue(k.user, &r.turns)
	}
	return r.serve()
}

func (r *rules) give(user string, size int64) []*claim {
	if r.held[user] -= size; r.held[user] == 0 {
		delete(r.held, user)
	}
	r.free += size
	for _, g := range slices.Clone(r.greedy) {
		if r.may(g, r.waits[g][0].size) {
			r.queue(g, &r.turns)
		}
	}
	return r.serve()
}

// users returns the number of users who hold something or wait.
func (r *rules) users() int {
	n := len(r.held)
	for user := range r.waits {
		if r.held[user] == 0 {
			n++
		}
	}
	return n
}

// Users claim, give up and give back at random. The pool grants what the rules grant, when they grant it,
// and knows no other users.
func TestPoolFollowsItsRules(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range 100 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			capacity := 1 + random.Int64N(100)
			p := NewPool(capacity, random.IntN(3) > 0)
			r := &rules{capacity: capacity, free: capacity, shared: p.shared, held: map[string]int64{}, waits: map[string][]*claim{}}
			var waiting, holding []*claim
			check := func(what string, granted []*claim) {
				t.Helper()
				synctest.Wait()
				waiting = slices.DeleteFunc(waiting, func(k *claim) bool {
					done, err := k.state()
					if want := slices.Contains(granted, k); done != want || err != nil {
						t.Fatalf("%s: the claim of %s to %d has ended: %t, %v; want %t", what, k.user, k.size, done, err, want)
					}
					return done
				})
				holding = append(holding, granted...)
				if p.Taken() != capacity-r.free || p.Waiting() != len(waiting) || len(p.mu.users) != r.users() {
					t.Fatalf("%s: %d are held instead of %d, %d wait instead of %d, %d users are known instead of %d",
						what, p.Taken(), capacity-r.free, p.Waiting(), len(waiting), len(p.mu.users), r.users())
				}
			}
			give := func(i int) {
				k := holding[i]
				holding = slices.Delete(holding, i, i+1)
				p.Give(k.user, k.size)
				check("give", r.give(k.user, k.size))
			}
			for range 300 {
				user, size := fmt.Sprint("user", random.IntN(5)), 1+random.Int64N(capacity)
				if random.IntN(3) > 0 {
					size = 1 + size/10
				}
				switch n := random.IntN(12); {
				case n < 5:
					k := enter(t, p, user, size)
					waiting = append(waiting, k)
					check("take", r.enter(k))
				case n < 7:
					want := r.take(user, size)
					if got := p.Try(user, size); got != want {
						t.Fatalf("try %s %d: %t", user, size, got)
					}
					if want {
						holding = append(holding, &claim{user: user, size: size})
					}
					check("try", r.serve())
				case n < 9 && len(waiting) > 0:
					i := random.IntN(len(waiting))
					k := waiting[i]
					waiting = slices.Delete(waiting, i, i+1)
					k.leave()
					synctest.Wait()
					if _, err := k.state(); !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
					check("leave", r.leave(k))
				case len(holding) > 0:
					give(random.IntN(len(holding)))
				}
			}
			for len(holding) > 0 {
				give(0)
			}
			if len(waiting) > 0 || p.Taken() != 0 {
				t.Fatalf("in the end %d wait, and %d of %d are held", len(waiting), p.Taken(), capacity)
			}
		})
	}
}

// Many users take all that they can get, and others still find room.
func TestPoolLeavesRoom(t *testing.T) {
	const capacity = 1000
	for _, users := range []int64{1, 2, 3, 9, 99} {
		p := NewPool(capacity, true)
		taken := map[int64]int64{}
		for more := true; more; {
			more = false
			for i := range users {
				if p.Try(fmt.Sprint("user", i), 1) {
					more, taken[i] = true, taken[i]+1
				}
			}
		}
		least := int64(capacity)
		for i := range users {
			least = min(least, taken[i])
		}
		if free, part := capacity-p.Taken(), capacity/(users+1); free < part || least < part-1 {
			t.Errorf("%d users: %d are free, and a user has got %d, want %d", users, free, least, part)
		}
	}
}

// A claim that is granted while it gives up is given back. One that never fits fails.
func TestClaimsThatGiveUp(t *testing.T) {
	for range 100 { // the claim may end in two ways
		synctest.Test(t, func(t *testing.T) {
			p := NewPool(1, false)
			p.Try("a", 1)
			k := enter(t, p, "b", 1)
			k.leave()
			p.Give("a", 1)
			if synctest.Wait(); k.granted() == (p.Taken() == 0) {
				t.Errorf("granted: %t, and %d are taken", k.granted(), p.Taken())
			}
			if err := p.Take(t.Context(), "a", 2); !errors.Is(err, errNeverFits) {
				t.Errorf("more than the capacity: %v", err)
			}
		})
	}
}
