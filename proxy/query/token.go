package query

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"strings"
)

// continueToken is kube-apiserver's own continue token: unpadded base64url of this JSON. So a list
// that began here can continue at the apiserver or at another replica. The reverse also works.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	// StartKey is the first key of the page, relative to the listed prefix: "namespace/name" in all
	// namespaces, "name" in one. The apiserver's cache writes a leading slash, etcd does not; both
	// are accepted.
	StartKey string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// EncodeToken makes the token of the page after an object, in the form of the apiserver's cache.
// For a resource without that cache, it uses the form of etcd. The last key is relative to the
// listed prefix.
func EncodeToken(last string, rv uint64, etcd bool) string {
	start := "/" + last + "\x00"
	if etcd {
		start = start[1:]
	}
	data, err := json.Marshal(continueToken{tokenVersion, int64(rv), start})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// DecodeToken returns the start of a page, relative to the listed prefix, and its resourceVersion.
// A negative resourceVersion asks for the most recent state. Malformed tokens are left to upstream.
func DecodeToken(token string) (start string, rv int64, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, ErrDoubtful
	}
	var t continueToken
	if err := json.Unmarshal(data, &t); err != nil || t.APIVersion != tokenVersion || t.ResourceVersion == 0 || t.StartKey == "" {
		return "", 0, ErrDoubtful
	}
	// A key that is not a clean path could leave the listed prefix.
	key := "/" + strings.TrimPrefix(t.StartKey, "/")
	if path.Clean(key) != key {
		return "", 0, ErrDoubtful
	}
	return key[1:], t.ResourceVersion, nil
}
