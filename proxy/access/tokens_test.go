package access

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// tokenReview answers reviews of tokens. The token is the name of its user.
type tokenReview func(token string) (authenticated bool, err error)

// Create implements TokenReviewInterface.
func (r tokenReview) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	ok, err := r(review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: authenticationv1.UserInfo{
		Username: review.Spec.Token, UID: "uid", Groups: []string{"group"}, Extra: map[string]authenticationv1.ExtraValue{"key": {"value"}},
	}}
	return review, err
}

func TestUserOfAToken(t *testing.T) {
	tokens := newTokens(tokenReview(func(string) (bool, error) { return true, nil }), time.Hour)
	want := &user.DefaultInfo{Name: "a", UID: "uid", Groups: []string{"group"}, Extra: map[string][]string{"key": {"value"}}}
	if resp, ok, err := tokens.AuthenticateToken(t.Context(), "a"); err != nil || !ok || !reflect.DeepEqual(resp.User, want) {
		t.Errorf("%+v, %t, %v", resp, ok, err)
	}
}

// An address that sends made-up tokens does not block the reviews of other addresses, however
// upstream responds.
func TestMadeUpTokensBlockNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{TokenTTL: time.Minute})
		j.hold = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		const flood = 5 * reviewsMax
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		for i := range flood {
			all.Go(func() { _, _ = a.askFrom(ctx, t, "192.0.2.1:1000", fmt.Sprint("bad", i)) })
		}
		underWay := func(want int64) {
			t.Helper()
			synctest.Wait()
			if n := j.tokens.Load(); n != want {
				t.Errorf("%d reviews are under way, want %d", n, want)
			}
		}
		underWay(reviewsMax / 2)
		served := make(chan error, 1)
		go func() {
			_, err := a.askFrom(ctx, t, "192.0.2.2:1000", "good")
			served <- err
		}()
		underWay(reviewsMax/2 + 1)
		close(j.hold)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// A client that sends made-up tokens does not lock out users of the same network, as behind a NAT or in
// the host's network. Their good tokens are renewed as their users', also when they were idle for longer
// than the outcome counts. A review that fails is tried again before the outcome expires. A new token on
// the connection of a known user is reviewed as this user's.
func TestMadeUpTokensBlockNoKnownUser(t *testing.T) {
	for name, pause := range map[string]time.Duration{"busy": time.Second, "idle": 90 * time.Second, "rotated": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const takes, rate, lasts = 100 * time.Millisecond, 400, 3 * time.Minute
				good := 0
				review := tokenReview(func(token string) (bool, error) {
					time.Sleep(takes)
					if !strings.HasPrefix(token, "good") {
						return false, nil
					}
					if good++; name == "busy" && good%2 == 0 {
						return false, errors.New("no answer")
					}
					return true, nil
				})
				tokens := newTokens(review, time.Minute)
				ctx := context.WithValue(t.Context(), networkKey{}, "192.0.2.1")
				ask := func(ctx context.Context, token string) bool {
					_, ok, _ := tokens.AuthenticateToken(ctx, token)
					return ok
				}
				if !ask(ctx, "good") {
					t.Fatal("a good token is refused")
				}
				flood, end := context.WithCancel(ctx)
				var all sync.WaitGroup
				defer time.Sleep(2 * reviewTimeout) // nobody waits for some reviews any more
				defer all.Wait()
				defer end()
				all.Go(func() {
					for i := 0; flood.Err() == nil; i++ {
						all.Go(func() { ask(flood, fmt.Sprint("bad", i)) })
						time.Sleep(time.Second / rate)
					}
				})
				token := "good"
				for i := range lasts / pause {
					time.Sleep(pause)
					asked := ctx
					if name == "rotated" {
						asked, token = Known(ctx, "user"), fmt.Sprint("good", i)
					}
					began := time.Now()
					if ok, waited := ask(asked, token), time.Since(began); !ok || waited > takes {
						t.Fatalf("after %v: %t", waited, ok)
					}
				}
			})
		})
	}
}
