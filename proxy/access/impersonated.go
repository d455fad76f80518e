package access

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// ImpersonatePrefix begins the names of headers for impersonation.
const ImpersonatePrefix = "Impersonate-"

// impersonationRights limits the rights, and so the reviews, that an impersonation may need.
const impersonationRights = 32

// ErrUndecided says that upstream must decide on an impersonation.
var ErrUndecided = errors.New("upstream has to decide on the impersonation")

// impersonated is a user that a caller impersonates. Its reviews use the caller's turns. Otherwise
// a caller could use the turns of all the users that it may impersonate.
type impersonated struct {
	user.DefaultInfo
	by string // the caller's name
}

// EffectiveUser returns the user of a read: the caller, or the user in its Impersonate headers. The
// apiserver's filter without constraints reviews each right that this needs: a constrained right
// results in the same user. The error is ErrUndecided or ErrUnavailable.
func (a *Access) EffectiveUser(
	ctx context.Context, caller *Caller, header http.Header,
) (user.Info, error) {
	switch rights, ok := neededRights(header); {
	case !ok:
		return nil, ErrUndecided
	case rights == 0:
		return caller.User, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := &http.Request{URL: &url.URL{}, Header: http.Header{}}
	for name, values := range header {
		if strings.HasPrefix(name, ImpersonatePrefix) {
			asked.Header[name] = values // the filter would write a refusal in the form of others
		}
	}
	as, _, err := impersonate(a.unconstrained, caller, asked.WithContext(ctx))
	switch found, ok := as.(*user.DefaultInfo); {
	case err != nil:
		return nil, err
	case ok:
		return &impersonated{*found, caller.User.GetName()}, nil
	}
	return nil, ErrUndecided
}

// neededRights returns the number of rights that Impersonate headers need. It returns false if
// upstream might parse them differently, if they are too many, and for nodes, whose groups depend
// on the right that upstream finds.
func neededRights(header http.Header) (rights int, ok bool) {
	var keys []string // of extra fields
	for name, values := range header {
		if !strings.HasPrefix(name, ImpersonatePrefix) {
			continue
		}
		if len(values) == 0 || !isPlain(values...) {
			return 0, false
		}
		key, isExtra := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		switch {
		case isExtra: // several headers can name the same key, in any order
			key, err := url.PathUnescape(strings.ToLower(key))
			if err != nil || !isPlain(key) || key != strings.ToLower(key) ||
				slices.Contains(keys, key) {
				return 0, false
			}
			keys = append(keys, key)
		case name == authenticationv1.ImpersonateGroupHeader:
		case len(values) > 1:
			return 0, false
		case name == authenticationv1.ImpersonateUserHeader &&
			!strings.HasPrefix(values[0], "system:node:"):
		case name == authenticationv1.ImpersonateUIDHeader:
		default:
			return 0, false
		}
		rights += len(values)
	}
	return rights, rights <= impersonationRights
}

// isPlain reports whether values arrive unchanged in headers and in reviews.
func isPlain(values ...string) bool {
	return !slices.ContainsFunc(values, func(v string) bool {
		return !isHeaderValue(v) || !utf8.ValidString(v)
	})
}
