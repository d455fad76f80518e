package access

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A busy user waits only for the first review. The next review begins before the first outcome
// expires, and its outcome applies as soon as the review ends. If that review fails, the first
// outcome is valid until it expires.
func TestOutcomesAreRenewed(t *testing.T) {
	const ttl = time.Minute
	refused := errors.New("revoked")
	for name, second := range map[string]error{"good": nil, "revoked": refused, "unavailable": errors.New("no answer")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, answer := 0, make(chan error, 1)
				review := tokenReview(func(string) (bool, error) {
					asked++
					err := <-answer
					if errors.Is(err, refused) {
						return false, nil
					}
					return true, err
				})
				tokens := newTokens(review, ttl)
				ask := func(want bool) {
					t.Helper()
					if _, ok, _ := tokens.AuthenticateToken(t.Context(), "token"); ok != want {
						t.Errorf("after %d reviews: %t", asked, ok)
					}
					synctest.Wait()
				}
				answer <- nil
				ask(true)
				time.Sleep(ttl * 7 / 10)
				if ask(true); asked != 1 {
					t.Errorf("%d reviews, long before the time is over", asked)
				}
				time.Sleep(ttl / 10)
				for range 3 { // no client waits
					ask(true)
				}
				if asked != 2 {
					t.Errorf("%d reviews, shortly before the time is over", asked)
				}
				answer <- second
				synctest.Wait()
				ask(!errors.Is(second, refused))
				time.Sleep(ttl * 3 / 10) // since the first review
				switch {
				case second == nil:
					ask(true)
				case errors.Is(second, refused):
					answer <- refused
					ask(false)
				default:
					answer <- nil
					if ask(true); asked != 3 {
						t.Errorf("%d reviews after one that had no answer", asked)
					}
				}
			})
		})
	}
}
