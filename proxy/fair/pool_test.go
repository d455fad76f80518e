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
	Claim
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

func enter(t *testing.T, p *Pool, c Claim) *taker {
	ctx, cancel := context.WithCancel(t.Context())
	k := &taker{Claim: c, leave: cancel}
	go func() {
		err := p.Take(ctx, c)
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
			p := NewPool(capacity, random.IntN(3) > 0, 1+random.Int64N(200))
			var waiting, holding []*taker
			last := map[string]int{} // by user, the last claim that was granted
			settle := func() {
				synctest.Wait()
				waiting = slices.DeleteFunc(waiting, func(k *taker) bool {
					done, err := k.state()
					switch {
					case !done:
						return false
					case err == nil && k.entered < last[k.User]: // 3
						t.Fatalf("claim %d of %s is granted before an earlier one", last[k.User], k.User)
					case err == nil:
						last[k.User] = k.entered
						holding = append(holding, k)
					case errors.Is(err, errNeverFits) && k.Size > capacity, errors.Is(err, context.Canceled), errors.Is(err, ErrCrowded):
					default:
						t.Fatal(err)
					}
					return true
				})
				held, room, all := map[string][]int64{}, int64(0), int64(0)
				for _, k := range holding {
					held[k.User], all = append(held[k.User], k.Size), all+k.Size
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
					room += k.Held
					users[k.User] = true
				}
				if p.Taken() != all || all > capacity || p.Waiting() != len(waiting) || len(p.mu.users) != len(users) { // 1, 5
					t.Fatalf("%d of %d are held instead of %d, %d wait instead of %d, and it knows %d users instead of %d", p.Taken(), capacity, all, p.Waiting(), len(waiting), len(p.mu.users), len(users))
				}
				if p.room.Taken() != room || room > p.room.Capacity { // 4
					t.Fatalf("%d of %d bytes wait instead of %d", p.room.Taken(), p.room.Capacity, room)
				}
				if w := p.nextLocked(); w != nil && w.Size <= p.mu.free { // 3
					t.Fatalf("a claim of %d waits, %d are free", w.Size, p.mu.free)
				}
			}
			for step := range 300 {
				switch n := random.IntN(12); {
				case n < 5:
					size := 1 + random.Int64N(capacity+capacity/10+1)
					if random.IntN(3) > 0 {
						size = 1 + size/10
					}
					k := enter(t, p, Claim{User: fmt.Sprint("user", random.IntN(5)), Size: size, Held: random.Int64N(40)})
					k.entered = step
					waiting = append(waiting, k)
				case n < 7:
					k := &taker{Claim: Claim{User: fmt.Sprint("user", random.IntN(5)), Size: 1 + random.Int64N(1+capacity/6)}}
					if p.Try(k.Claim) {
						holding = append(holding, k)
					}
				case n < 9 && len(waiting) > 0:
					waiting[random.IntN(len(waiting))].leave()
					if len(holding) > 0 && random.IntN(2) == 0 { // at the same time
						p.Give(holding[0].User, holding[0].Size)
						holding = holding[1:]
					}
				case len(holding) > 0:
					i := random.IntN(len(holding))
					p.Give(holding[i].User, holding[i].Size)
					holding = slices.Delete(holding, i, i+1)
				}
				settle()
			}
			for len(holding) > 0 {
				p.Give(holding[0].User, holding[0].Size)
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
				p := NewPool(capacity, true, capacity)
				name := func(i int64) string { return fmt.Sprint("user", i) }
				taken := map[int64]int64{}
				for more := true; more; {
					more = false
					for i := range users {
						if p.Try(Claim{User: name(i), Size: 1}) {
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
				waits := enter(t, p, Claim{User: name(0), Size: 1})
				free := capacity - p.Taken()
				if !p.Try(Claim{User: "other", Size: free/2 - 1}) || !p.Try(Claim{User: "other", Size: 1}) {
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
		p := NewPool(12, true, 100)
		if !p.Try(Claim{User: "a", Size: 3}) || !p.Try(Claim{User: "holder", Size: 9}) {
			t.Fatal("not granted")
		}
		first, second := enter(t, p, Claim{User: "b", Size: 5}), enter(t, p, Claim{User: "a", Size: 3})
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
		holder = waiting[i].User
		order.WriteString(holder[:1])
		waiting = slices.Delete(waiting, i, i+1)
	}
	return order.String()
}

// Users take turns, whatever the number of their claims. A claim that gives up while nothing is free has
// held nobody up, and its user loses no turn.
func TestPoolServesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(1, false, 100)
		if !p.Try(Claim{User: "holder", Size: 1}) {
			t.Fatal("no room in an empty pool")
		}
		var waiting []*taker
		impatient := enter(t, p, Claim{User: "many", Size: 1})
		for _, user := range []string{"many", "many", "many", "few", "few", "one", "many"} {
			waiting = append(waiting, enter(t, p, Claim{User: user, Size: 1}))
		}
		impatient.leave()
		synctest.Wait()
		if order := served(p, "holder", waiting); order != "mfomfmm" {
			t.Errorf("served in the order %s", order)
		}
	})
}

// Each user has at most half of what others leave of the memory for waiting claims. A claim that holds no
// memory while it waits is never refused, because it is for the rest of a response that has begun.
func TestPoolIsCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(1, false, 100)
		enter(t, p, Claim{User: "holder", Size: 1, Held: 1000}) // a granted claim uses no room
		refused := func(user string, held int64) bool {
			_, err := enter(t, p, Claim{User: user, Size: 1, Held: held}).state()
			return errors.Is(err, ErrCrowded)
		}
		for i := range 10 {
			if refused("many", 10) != (i >= 5) {
				t.Errorf("claim %d: refused: %t", i, i < 5)
			}
		}
		if refused("other", 15) || refused("many", 0) {
			t.Error("a claim is refused although there is room")
		}
		if !refused("huge", 101) {
			t.Error("a claim waits that holds more than the room")
		}
	})
}

// A large claim that waits stops no claim that cannot wait and for which there is room. It is granted
// once there is room for it.
func TestTryBesideLargeClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, true, 0)
		if !p.Try(Claim{User: "a", Size: 45}) {
			t.Fatal("no room in an empty pool")
		}
		large := enter(t, p, Claim{User: "large", Size: 60})
		for _, user := range []string{"b", "c", "b"} {
			if !p.Try(Claim{User: user, Size: 2}) {
				t.Errorf("%s: no room although %d of 100 are taken", user, p.Taken())
			}
		}
		if p.Try(Claim{User: "a", Size: 10}) || p.Try(Claim{User: "d", Size: 50}) {
			t.Error("granted more than a user's share, or than is free")
		}
		for _, held := range []Claim{{User: "b", Size: 4}, {User: "c", Size: 2}, {User: "a", Size: 45}} {
			if large.granted() {
				t.Error("the large claim was granted too early")
			}
			p.Give(held.User, held.Size)
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
		p := NewPool(100, true, 0)
		if !p.Try(Claim{User: "holder", Size: 40}) {
			t.Fatal("no room in an empty pool")
		}
		first, second := enter(t, p, Claim{User: "large", Size: 80}), enter(t, p, Claim{User: "large", Size: 80})
		small := enter(t, p, Claim{User: "small", Size: 1})
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
