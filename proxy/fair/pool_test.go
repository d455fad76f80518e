package fair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// taker has a claim.
type taker struct {
	user    string
	size    int64
	leave   context.CancelFunc
	entered int
	mu      sync.Mutex
	done    bool
	err     error
}

func (k *taker) state() (done bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.done, k.err
}

// granted reports whether the taker has what it has claimed.
func (k *taker) granted() bool {
	done, err := k.state()
	return done && err == nil
}

func enter(t *testing.T, p *Pool, user string, size int64) *taker {
	ctx, cancel := context.WithCancel(t.Context())
	k := &taker{user: user, size: size, leave: cancel}
	go func() {
		err := p.Take(ctx, user, size)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.done, k.err = true, err
	}()
	synctest.Wait()
	return k
}

// Users claim, give up and give back at random. The invariants hold, which have numbers in Pool's
// comment. In the end the whole capacity is free and the pool knows no users.
func TestPoolOfManyUsers(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			capacity := 1 + random.Int64N(100)
			p := NewPool(capacity, random.IntN(3) > 0)
			var waiting, holding []*taker
			last := map[string]int{} // by user, the last claim that was granted
			settle := func() {
				synctest.Wait()
				waiting = slices.DeleteFunc(waiting, func(k *taker) bool {
					done, err := k.state()
					switch {
					case !done:
						return false
					case err == nil && k.entered < last[k.user]: // 3
						t.Fatalf("claim %d of %s is granted before an earlier one", last[k.user], k.user)
					case err == nil:
						last[k.user] = k.entered
						holding = append(holding, k)
					case errors.Is(err, errNeverFits) && k.size > capacity, errors.Is(err, context.Canceled):
					default:
						t.Fatal(err)
					}
					return true
				})
				held, all := map[string][]int64{}, int64(0)
				for _, k := range holding {
					held[k.user], all = append(held[k.user], k.size), all+k.size
				}
				for user, sizes := range held { // 2
					sum := int64(0)
					for _, size := range sizes {
						sum += size
					}
					if p.shared && len(sizes) > 1 && sum > max(capacity/2, slices.Max(sizes)) {
						t.Fatalf("%s holds %v of %d", user, sizes, capacity)
					}
				}
				users := map[string]bool{}
				for user := range held {
					users[user] = true
				}
				for _, k := range waiting {
					users[k.user] = true
				}
				if p.Taken() != all || all > capacity || p.Waiting() != len(waiting) || len(p.mu.users) != len(users) { // 1, 4
					t.Fatalf("%d of %d are held instead of %d, %d wait instead of %d, and it knows %d users instead of %d", p.Taken(), capacity, all, p.Waiting(), len(waiting), len(p.mu.users), len(users))
				}
				for e := p.mu.greedy.Front(); e != nil; e = e.Next() {
					if u := e.Value.(*user); p.mayLocked(u, u.first().size) {
						t.Fatalf("%s waits for more to be free, although %d are", u.name, p.mu.free)
					}
				}
				if e := p.mu.turns.Front(); e != nil { // 3
					u := e.Value.(*user)
					if size := u.first().size; size <= p.mu.free || !p.mayLocked(u, size) {
						t.Fatalf("a claim of %d waits for room, %d are free", size, p.mu.free)
					}
				}
			}
			for step := range 300 {
				switch n := random.IntN(12); {
				case n < 5:
					size := 1 + random.Int64N(capacity+capacity/10+1)
					if random.IntN(3) > 0 {
						size = 1 + size/10
					}
					k := enter(t, p, fmt.Sprint("user", random.IntN(5)), size)
					k.entered = step
					waiting = append(waiting, k)
				case n < 7:
					k := &taker{user: fmt.Sprint("user", random.IntN(5)), size: 1 + random.Int64N(1+capacity/6)}
					if p.Try(k.user, k.size) {
						holding = append(holding, k)
					}
				case n < 9 && len(waiting) > 0:
					waiting[random.IntN(len(waiting))].leave()
					if len(holding) > 0 && random.IntN(2) == 0 { // at the same time
						p.Give(holding[0].user, holding[0].size)
						holding = holding[1:]
					}
				case len(holding) > 0:
					i := random.IntN(len(holding))
					p.Give(holding[i].user, holding[i].size)
					holding = slices.Delete(holding, i, i+1)
				}
				settle()
			}
			for len(holding) > 0 {
				p.Give(holding[0].user, holding[0].size)
				holding = holding[1:]
				settle()
			}
			if len(waiting) > 0 || p.Taken() != 0 {
				t.Fatalf("in the end %d wait, and %d of %d are held", len(waiting), p.Taken(), capacity)
			}
		})
	}
}

// Many users take all that they can get, and others still find room. The pool grants a waiting claim
// as soon as enough is free.
func TestPoolLeavesRoom(t *testing.T) {
	const capacity = 1000
	for _, users := range []int64{1, 2, 3, 9, 99} {
		t.Run(fmt.Sprint(users), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewPool(capacity, true)
				name := func(i int64) string { return fmt.Sprint("user", i) }
				taken := map[int64]int64{}
				for more := true; more; {
					more = false
					for i := range users {
						if p.Try(name(i), 1) {
							more, taken[i] = true, taken[i]+1
						}
					}
				}
				least := int64(capacity)
				for i := range users {
					least = min(least, taken[i])
				}
				if free, part := capacity-p.Taken(), capacity/(users+1); free < part || least < part-1 {
					t.Errorf("%d are free, and a user has got %d, want %d", free, least, part)
				}
				waits := enter(t, p, name(0), 1)
				free := capacity - p.Taken()
				if !p.Try("other", free/2-1) || !p.Try("other", 1) {
					t.Errorf("another user gets nothing of %d", free)
				}
				if waits.granted() {
					t.Error("granted beyond the share")
				}
				p.Give("other", 1)
				p.Give("other", free/2-1)
				for i := range users {
					p.Give(name(i), taken[i]-1)
				}
				if synctest.Wait(); !waits.granted() {
					t.Errorf("not granted although %d are free", capacity-p.Taken())
				}
			})
		})
	}
}

// A claim that could be granted when more was free waits again after another claim was granted.
func TestPoolChecksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(12, true)
		if !p.Try("a", 3) || !p.Try("holder", 9) {
			t.Fatal("not granted")
		}
		first, second := enter(t, p, "b", 5), enter(t, p, "a", 3)
		p.Give("holder", 9)
		if synctest.Wait(); !first.granted() {
			t.Error("a first claim waits although there is room")
		}
		if second.granted() {
			t.Error("a user holds 6 of 12 although only 1 is free")
		}
		p.Give("b", 5)
		if synctest.Wait(); !second.granted() {
			t.Error("a claim waits although enough is free")
		}
	})
}

// served gives back what its holder has, again and again, and returns the first letters of the users who
// are served next.
func served(p *Pool, holder string, waiting []*taker) string {
	var order strings.Builder
	for len(waiting) > 0 {
		p.Give(holder, 1)
		synctest.Wait()
		i := slices.IndexFunc(waiting, (*taker).granted)
		if i < 0 {
			break
		}
		holder = waiting[i].user
		order.WriteString(holder[:1])
		waiting = slices.Delete(waiting, i, i+1)
	}
	return order.String()
}

// Users take turns, whatever the number of their claims. A claim that gives up while nothing is free has
// held nobody up, and its user loses no turn.
func TestPoolServesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(1, false)
		if !p.Try("holder", 1) {
			t.Fatal("no room in an empty pool")
		}
		var waiting []*taker
		impatient := enter(t, p, "many", 1)
		for _, user := range []string{"many", "many", "many", "few", "few", "one", "many"} {
			waiting = append(waiting, enter(t, p, user, 1))
		}
		impatient.leave()
		synctest.Wait()
		if order := served(p, "holder", waiting); order != "mfomfmm" {
			t.Errorf("served in the order %s", order)
		}
	})
}

// A large claim that waits stops no claim that cannot wait and for which there is room. It is granted
// once there is room for it.
func TestTryBesideLargeClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, true)
		if !p.Try("a", 45) {
			t.Fatal("no room in an empty pool")
		}
		large := enter(t, p, "large", 60)
		for _, user := range []string{"b", "c", "b"} {
			if !p.Try(user, 2) {
				t.Errorf("%s: no room although %d of 100 are taken", user, p.Taken())
			}
		}
		if p.Try("a", 10) || p.Try("d", 50) {
			t.Error("granted more than a user's share, or than is free")
		}
		for _, held := range []*taker{{user: "b", size: 4}, {user: "c", size: 2}, {user: "a", size: 45}} {
			if large.granted() {
				t.Error("the large claim was granted too early")
			}
			p.Give(held.user, held.size)
			synctest.Wait()
		}
		if !large.granted() {
			t.Fatal("the large claim still waits")
		}
	})
}

// A user whose claims wait for more room than there is, and give up, holds others up for one turn and
// not for all of them.
func TestClaimsThatGiveUpLetOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, true)
		if !p.Try("holder", 40) {
			t.Fatal("no room in an empty pool")
		}
		first, second := enter(t, p, "large", 80), enter(t, p, "large", 80)
		small := enter(t, p, "small", 1)
		if small.granted() {
			t.Error("a later claim has overtaken a large one")
		}
		first.leave()
		if synctest.Wait(); !small.granted() {
			t.Error("it still waits, for a claim that came later")
		}
		p.Give("holder", 40)
		if synctest.Wait(); !second.granted() {
			t.Error("the large claim has lost its turn")
		}
	})
}

// A claim that must wait until more is free holds nobody up. If it gives up, its user's next claim may be
// granted.
func TestGreedyClaimsLetOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, true)
		if !p.Try("greedy", 30) || !p.Try("holder", 20) {
			t.Fatal("no room")
		}
		large, small := enter(t, p, "greedy", 20), enter(t, p, "greedy", 5)
		if other := enter(t, p, "other", 1); !other.granted() || large.granted() {
			t.Error("a claim beyond its user's share has held up another user's, or was granted")
		}
		large.leave()
		if synctest.Wait(); !small.granted() {
			t.Error("the user's next claim waits")
		}
	})
}
