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
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ImpersonatePrefix begins the names of headers for impersonation.
const ImpersonatePrefix = "Impersonate-"

const (
	// impersonationRights limits the rights, and so the reviews, that an impersonation may need.
	impersonationRights = 32
	// nodePrefix begins the names of nodes.
	nodePrefix = "system:node:"
)

// ErrUndecided says that upstream must decide on an impersonation.
var ErrUndecided = errors.New("upstream has to decide on the impersonation")

// impersonated is a user that a caller impersonates. Its reviews use the caller's turns. Otherwise
// a caller could use the turns of all the users that it may impersonate.
type impersonated struct {
	user.DefaultInfo
	by string // the caller's name
}

// EffectiveUser returns the user of a read: the caller, or the user in its Impersonate headers. It
// reviews each right that this needs. The error is ErrUndecided or ErrUnavailable.
func (a *Access) EffectiveUser(ctx context.Context, caller *Caller, header http.Header) (user.Info, error) {
	as, rights, err := impersonationOf(caller.User, header)
	if len(rights) == 0 || err != nil {
		return as, err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	for _, right := range rights {
		switch decision, _, err := a.Authorize(ctx, right); {
		case decision == authorizer.DecisionAllow:
		case err != nil:
			return nil, err
		default:
			return nil, ErrUndecided
		}
	}
	return as, nil
}

// impersonationOf returns the user of a read and the rights that the impersonation needs, the
// user's first. Without Impersonate headers, the user is the caller.
func impersonationOf(caller user.Info, header http.Header) (as user.Info, rights []authorizer.Attributes, err error) {
	wanted, err := wantedUser(header)
	switch {
	case err != nil:
		return nil, nil, err
	case wanted == nil:
		return caller, nil, nil
	}
	needs := func(right authorizer.AttributesRecord) {
		right.User, right.Verb, right.APIVersion, right.ResourceRequest = caller, "impersonate", "v1", true
		rights = append(rights, &right)
	}
	groups := wanted.Groups
	if namespace, name, err := serviceaccount.SplitUsername(wanted.Name); err == nil {
		needs(authorizer.AttributesRecord{Resource: "serviceaccounts", Namespace: namespace, Name: name})
		if len(wanted.Groups) == 0 {
			wanted.Groups = serviceaccount.MakeGroupNames(namespace)
		}
	} else {
		needs(authorizer.AttributesRecord{Resource: "users", Name: wanted.Name})
	}
	for _, group := range groups {
		needs(authorizer.AttributesRecord{Resource: "groups", Name: group})
	}
	const apiGroup = authenticationv1.GroupName
	for key, values := range wanted.Extra {
		for _, value := range values {
			needs(authorizer.AttributesRecord{APIGroup: apiGroup, Resource: "userextras", Subresource: key, Name: value})
		}
	}
	if wanted.UID != "" {
		needs(authorizer.AttributesRecord{APIGroup: apiGroup, Resource: "uids", Name: wanted.UID})
	}
	addStandardGroup(wanted)
	return &impersonated{*wanted, caller.GetName()}, rights, nil
}

func addStandardGroup(u *user.DefaultInfo) {
	standard := user.AllAuthenticated
	if u.Name == user.Anonymous || slices.Contains(u.Groups, user.AllUnauthenticated) {
		standard = user.AllUnauthenticated
	}
	if !slices.Contains(u.Groups, standard) {
		u.Groups = append(u.Groups, standard)
	}
}

// wantedUser parses Impersonate headers; nil means none. It returns ErrUndecided if upstream might
// parse them differently, and for nodes, whose groups depend on the right that upstream finds.
func wantedUser(header http.Header) (wanted *user.DefaultInfo, err error) {
	all := 0
	for name, values := range header {
		if !strings.HasPrefix(name, ImpersonatePrefix) {
			continue
		}
		if wanted == nil {
			wanted = &user.DefaultInfo{}
		}
		if !readImpersonation(wanted, name, values) {
			return nil, ErrUndecided
		}
		all += len(values)
	}
	if wanted != nil && (wanted.Name == "" || strings.HasPrefix(wanted.Name, nodePrefix) || all > impersonationRights) {
		return nil, ErrUndecided
	}
	return wanted, nil
}

// readImpersonation parses one Impersonate header into a user. It returns false in doubt.
func readImpersonation(u *user.DefaultInfo, name string, values []string) bool {
	key, extra := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
	switch {
	case len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return !isPlain(v) }):
		return false
	case extra:
		return readExtra(u, key, values)
	case name == authenticationv1.ImpersonateGroupHeader:
		u.Groups = slices.Clone(values)
	case len(values) > 1:
		return false
	case name == authenticationv1.ImpersonateUserHeader:
		u.Name = values[0]
	case name == authenticationv1.ImpersonateUIDHeader:
		u.UID = values[0]
	default:
		return false
	}
	return true
}

// readExtra parses an extra field. Several headers can name the same key, in any order, so it
// returns false for a second header.
func readExtra(u *user.DefaultInfo, encoded string, values []string) bool {
	key, err := url.PathUnescape(strings.ToLower(encoded))
	if err != nil || !isPlain(key) || key != strings.ToLower(key) || u.Extra[key] != nil {
		return false
	}
	if u.Extra == nil {
		u.Extra = map[string][]string{}
	}
	u.Extra[key] = values
	return true
}

// isPlain reports whether a name arrives unchanged in a header and in a review.
func isPlain(name string) bool { return isHeaderValue(name) && utf8.ValidString(name) }
