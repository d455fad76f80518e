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

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// verify checks the invariants of a queue that is not in use. Comments have their numbers.
func verify(t *testing.T, q *Queue) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	var held, waiting int64
	for user, f := range q.mu.flows {
		held += f.held
		var bytes int64
		for e := f.waiters.Front(); e != nil; e = e.Next() {
			bytes += e.Value.(*Waiter).Held
		}
		waiting += bytes
		first := f.waiters.Front()
		in := f.in
		switch {
		case first == nil && in == nil, first != nil && in == &q.mu.turns:
		case first != nil && in == &q.mu.greedy && f.needs() > q.mu.free:
		default:
			t.Fatalf("%q may be served: %t; greedy: %t", user, in == &q.mu.turns, in == &q.mu.greedy)
		}
		switch {
		case f.user != user, f.waiting != bytes, f.held < 0:
			t.Fatalf("flow %+v of %q waits with %d bytes", f, user, bytes)
		case in != nil && in.flows[f.place] != f:
			t.Fatalf("%q is not at its place %d", user, f.place)
		case f.held == 0 && first == nil && (!f.rested || q.mu.waiters == 0):
			t.Fatalf("%q has nothing to do and is not forgotten", user) // 6
		}
	}
	switch {
	case held+q.mu.free != q.Capacity, q.mu.free < 0: // 1
		t.Fatalf("%d are held and %d free of %d", held, q.mu.free, q.Capacity)
	case waiting != q.mu.waiting, waiting > q.room: // 5
		t.Fatalf("%d bytes wait, of %d, %d are counted", waiting, q.room, q.mu.waiting)
	case len(q.mu.rested) > flowsRested:
		t.Fatalf("%d users rest", len(q.mu.rested))
	}
	if f := q.mu.turns.first(); f != nil { // 3
		if first := f.waiters.Front().Value.(*Waiter); first.Size <= q.mu.free {
			t.Fatalf("a claim of %d waits, %d are free", first.Size, q.mu.free)
		}
	}
}

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

func enter(t *testing.T, q *Queue, c Claim) *taker {
	ctx, cancel := context.WithCancel(t.Context())
	k := &taker{Claim: c, leave: cancel}
	go func() {
		err := q.Take(ctx, c)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.done, k.err = true, err
	}()
	synctest.Wait()
	return k
}

// Users claim, give up and give back at random. The invariants hold, and each user's claims are
// granted in order. No user holds more than half, except by one claim. In the end the whole capacity
// is free and the queue has no users.
func TestFairQueueOfManyUsers(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			capacity := 1 + random.Int64N(100)
			q := NewQueue(capacity, random.IntN(3) > 0, random.Int64N(200))
			var waiting, holding []*taker
			last := map[string]int{} // by user, the last claim that was granted
			settle := func() {
				synctest.Wait()
				verify(t, q)
				waiting = slices.DeleteFunc(waiting, func(k *taker) bool {
					done, err := k.state()
					switch {
					case !done:
						return false
					case err == nil && k.entered < last[k.User]:
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
				held := map[string][]int64{}
				for _, k := range holding {
					held[k.User] = append(held[k.User], k.Size)
				}
				all := int64(0)
				for user, sizes := range held { // 2
					sum := int64(0)
					for _, size := range sizes {
						sum += size
					}
					all += sum
					if q.shared && len(sizes) > 1 && sum > max(capacity/2, slices.Max(sizes)) {
						t.Fatalf("%s holds %v of %d", user, sizes, capacity)
					}
				}
				if q.Taken() != all {
					t.Fatalf("%d are held instead of %d", q.Taken(), all)
				}
			}
			for step := range 300 {
				switch n := random.IntN(10); {
				case n < 5:
					size := 1 + random.Int64N(capacity+capacity/10+1)
					if random.IntN(3) > 0 {
						size = 1 + size/10
					}
					k := enter(t, q, Claim{User: fmt.Sprint("user", random.IntN(5)), Size: size, Cost: random.Int64N(20), Held: random.Int64N(40)})
					k.entered = step
					waiting = append(waiting, k)
				case n < 7 && len(waiting) > 0:
					waiting[random.IntN(len(waiting))].leave()
					if len(holding) > 0 && random.IntN(2) == 0 { // at the same time
						q.Give(holding[0].User, holding[0].Size)
						holding = holding[1:]
					}
				case len(holding) > 0:
					i := random.IntN(len(holding))
					k := holding[i]
					holding = slices.Delete(holding, i, i+1)
					q.Give(k.User, k.Size)
				}
				settle()
			}
			for len(holding) > 0 {
				q.Give(holding[0].User, holding[0].Size)
				holding = holding[1:]
				settle()
			}
			if len(waiting) > 0 || q.mu.free != capacity || len(q.mu.flows) > 0 || q.mu.waiting != 0 {
				t.Fatalf("in the end %d wait, %d of %d are free, %d users are remembered", len(waiting), q.mu.free, capacity, len(q.mu.flows))
			}
		})
	}
}

// Many users take all that they can get, and others still find room. The queue grants a waiting claim
// as soon as enough is free.
func TestFairQueueLeavesRoom(t *testing.T) {
	const capacity = 1000
	for _, users := range []int64{1, 2, 3, 9, 99} {
		t.Run(fmt.Sprint(users), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewQueue(capacity, true, capacity)
				name := func(i int64) string { return fmt.Sprint("user", i) }
				taken := map[int64]int64{}
				for more := true; more; {
					more = false
					for i := range users {
						if q.Try(Claim{User: name(i), Size: 1}) {
							more, taken[i] = true, taken[i]+1
						}
					}
				}
				least := int64(capacity)
				for i := range users {
					least = min(least, taken[i])
				}
				if free, part := capacity-q.Taken(), capacity/(users+1); free < part || least < part-1 {
					t.Errorf("%d are free, and a user has got %d, want %d", free, least, part)
				}
				waits := enter(t, q, Claim{User: name(0), Size: 1})
				free := capacity - q.Taken()
				if !q.Try(Claim{User: "other", Size: free/2 - 1}) || !q.Try(Claim{User: "other", Size: 1}) {
					t.Errorf("another user gets nothing of %d", free)
				}
				if done, _ := waits.state(); done {
					t.Error("granted beyond the share")
				}
				q.Give("other", 1)
				q.Give("other", free/2-1)
				for i := range users {
					q.Give(name(i), taken[i]-1)
				}
				synctest.Wait()
				if done, err := waits.state(); !done || err != nil {
					t.Errorf("not granted although %d are free: %v", capacity-q.Taken(), err)
				}
				verify(t, q)
			})
		})
	}
}

// A claim that could be granted when more was free waits again after another claim was granted.
func TestFairQueueChecksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(12, true, 100)
		if !q.Try(Claim{User: "a", Size: 3}) || !q.Try(Claim{User: "holder", Size: 9}) {
			t.Fatal("not granted")
		}
		first, second := enter(t, q, Claim{User: "b", Size: 5}), enter(t, q, Claim{User: "a", Size: 3})
		q.Give("holder", 9)
		synctest.Wait()
		if done, _ := first.state(); !done {
			t.Error("a first claim waits although there is room")
		}
		if done, _ := second.state(); done {
			t.Error("a user holds 6 of 12 although only 1 is free")
		}
		q.Give("b", 5)
		synctest.Wait()
		if done, _ := second.state(); !done {
			t.Error("a claim waits although enough is free")
		}
		verify(t, q)
	})
}

// Users with permanently waiting claims get service of equal cost, whatever the size and number of
// their claims (4).
func TestFairQueueServesAlike(t *testing.T) {
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		const most = 50
		q := NewQueue(1, false, 1<<20)
		if err := q.Take(t.Context(), Claim{User: "first", Size: 1, Cost: 1, Held: 1}); err != nil {
			t.Fatal(err)
		}
		greatest := map[string]int64{"few": 1, "some": 7, "large": most}
		var order []Claim
		var mu sync.Mutex
		for user, cost := range greatest {
			for range 3000 / cost {
				c := Claim{User: user, Size: 1, Cost: 1 + random.Int64N(cost), Held: 1}
				go func() {
					if err := q.Take(t.Context(), c); err != nil {
						t.Error(err)
					}
					mu.Lock()
					order = append(order, c)
					mu.Unlock()
					q.Give(c.User, 1)
				}()
			}
		}
		synctest.Wait()
		q.Give("first", 1)
		synctest.Wait()
		verify(t, q)
		served, left := map[string]int64{}, map[string]int{}
		for _, c := range order {
			left[c.User]++
		}
		for _, c := range order {
			if len(left) < len(greatest) {
				break // a user's claims are all granted
			}
			served[c.User] += c.Cost
			if left[c.User]--; left[c.User] == 0 {
				delete(left, c.User)
			}
			for a := range greatest {
				for b := range greatest {
					if a != b && served[a]-served[b] > greatest[a]+greatest[b] {
						t.Fatalf("served: %v", served)
					}
				}
			}
		}
	})
}

// A user who makes one expensive claim at a time gets no more than a user with many waiting cheap
// claims.
func TestFairQueueRemembersWhoRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, false, 1<<20)
		if err := q.Take(t.Context(), Claim{User: "expensive", Size: 1, Cost: 100, Held: 1}); err != nil {
			t.Fatal(err)
		}
		var cheap []*taker
		for range 150 {
			cheap = append(cheap, enter(t, q, Claim{User: "cheap", Size: 1, Cost: 1, Held: 1}))
		}
		q.Give("expensive", 1)
		synctest.Wait()
		expensive := enter(t, q, Claim{User: "expensive", Size: 1, Cost: 100, Held: 1})
		for n := range 150 {
			if done, _ := expensive.state(); done {
				t.Fatalf("served after %d cheap ones", n)
			}
			if n == 99 {
				break
			}
			if done, err := cheap[n].state(); !done || err != nil {
				t.Fatalf("%d: %t %v", n, done, err)
			}
			q.Give("cheap", 1)
			synctest.Wait()
		}
		q.Give("cheap", 1)
		synctest.Wait()
		if done, err := expensive.state(); !done || err != nil {
			t.Fatalf("not served in its turn: %t %v", done, err)
		}
		for _, k := range cheap {
			k.leave()
		}
		q.Give("expensive", 1)
		synctest.Wait()
		verify(t, q)
		if len(q.mu.flows) != 0 {
			t.Errorf("%d users are remembered", len(q.mu.flows))
		}
	})
}

// When the room for waiting claims is full, the user with the most waiting bytes loses its last
// claims.
func TestFairQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, false, 100)
		if err := q.Take(t.Context(), Claim{User: "holder", Size: 1, Cost: 1, Held: 1000}); err != nil {
			t.Fatal(err) // a granted claim uses no room
		}
		var many []*taker
		for range 10 {
			many = append(many, enter(t, q, Claim{User: "many", Size: 1, Cost: 1, Held: 10}))
		}
		refused := func(k *taker) bool {
			done, err := k.state()
			return done && errors.Is(err, ErrCrowded)
		}
		if more := enter(t, q, Claim{User: "many", Size: 1, Cost: 1, Held: 10}); !refused(more) {
			t.Error("its own claim was not refused")
		}
		other := enter(t, q, Claim{User: "other", Size: 1, Cost: 1, Held: 15})
		for i, k := range many {
			if refused(k) != (i >= 8) {
				t.Errorf("claim %d: refused: %t", i, refused(k))
			}
		}
		if refused(other) {
			t.Error("refused though others have more waiting")
		}
		if huge := enter(t, q, Claim{User: "huge", Size: 1, Cost: 1, Held: 101}); !refused(huge) {
			t.Error("a claim waits that holds more than the room")
		}
		verify(t, q)
		q.Give("holder", 1)
		synctest.Wait()
		for _, k := range append(many[:8], other) {
			k.leave()
		}
		synctest.Wait()
		q.Give("many", 1)
		verify(t, q)
	})
}

// A claim that holds no memory while it waits is never refused for lack of room, because it is for
// the rest of a response that has begun.
func TestClaimWithoutMemoryIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, false, 100)
		enter(t, q, Claim{User: "holder", Size: 1})
		first := enter(t, q, Claim{User: "a", Size: 1, Held: 60})
		begun := enter(t, q, Claim{User: "a", Size: 1})
		last := enter(t, q, Claim{User: "a", Size: 1, Held: 40})
		rest := enter(t, q, Claim{User: "a", Size: 1})
		enter(t, q, Claim{User: "b", Size: 1, Held: 30})
		verify(t, q)
		for name, w := range map[string]*taker{"first": first, "begun": begun, "rest": rest} {
			if done, _ := w.state(); done {
				t.Errorf("%s was refused", name)
			}
		}
		if done, _ := last.state(); !done {
			t.Error("the last claim that holds memory still waits")
		}
	})
}

// A user whose claims wait for more room than there is, and give up, blocks others for one turn and
// not for all of them.
func TestClaimsThatGiveUpLetOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(100, true, 0)
		// The small claim's turn comes after the first turn of another user.
		if !q.Try(Claim{User: "holder", Size: 40}) || !q.Try(Claim{User: "small", Size: 1, Cost: 1}) {
			t.Fatal("no room in an empty queue")
		}
		ctx, give := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() { _ = q.Take(ctx, Claim{User: "large", Size: 80, Cost: 80}) }()
			synctest.Wait()
		}
		small := make(chan error, 1)
		go func() { small <- q.Take(t.Context(), Claim{User: "small", Size: 1, Cost: 1}) }()
		synctest.Wait()
		if len(small) > 0 {
			t.Error("a later claim has overtaken a large one")
		}
		left, leave := context.WithCancel(t.Context())
		go func() { _ = q.Take(left, Claim{User: "behind", Size: 1, Cost: 100}) }()
		synctest.Wait()
		leave()
		synctest.Wait()
		if f := q.mu.flows["behind"]; f != nil {
			t.Errorf("a claim that has blocked nobody is charged: the next turn is at %d", f.next)
		}
		give()
		synctest.Wait()
		if len(small) == 0 {
			t.Error("it still waits, for a claim that came later")
		}
		gone, leaves := context.WithCancel(t.Context())
		leaves()
		_ = q.Take(gone, Claim{User: "dear", Size: 80, Cost: 200})
		if f := q.mu.flows["dear"]; f == nil || f.next != q.mu.now+q.Capacity {
			t.Errorf("a dear claim is charged to %+v, now it is %d", f, q.mu.now)
		}
		q.Give("holder", 40)
		synctest.Wait()
		if q.Taken() != 82 {
			t.Errorf("%d are taken: the large claim has lost its turn", q.Taken())
		}
	})
}

// A claim that gives up while nothing is free has held nobody up. Its user loses no turn.
func TestClaimsThatGiveUpInAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, false, 0)
		if !q.Try(Claim{User: "holder", Size: 1}) {
			t.Fatal("no room in an empty queue")
		}
		served := make(chan string, 9)
		wait := func(ctx context.Context, user string) {
			go func() {
				if q.Take(ctx, Claim{User: user, Size: 1, Cost: 1}) == nil {
					served <- user
				}
			}()
			synctest.Wait()
		}
		impatient, give := context.WithCancel(t.Context())
		wait(impatient, "a")
		for range 2 {
			wait(t.Context(), "a")
			wait(t.Context(), "b")
		}
		give()
		synctest.Wait()
		var order string
		for user := "holder"; len(order) < 4; order += user {
			q.Give(user, 1)
			synctest.Wait()
			user = <-served
		}
		if order != "abab" {
			t.Errorf("served in the order %s", order)
		}
	})
}
