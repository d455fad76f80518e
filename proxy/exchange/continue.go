package exchange

import (
	"encoding/base64"
	"encoding/json"

	"k8s.io/apiserver/pkg/storage"
)

// continueToken is kube-apiserver's own continue token: unpadded base64url of this JSON. So a list
// that began here can continue at the apiserver or at another replica. The reverse also works.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	// StartKey is the first key of the page, relative to the listed prefix: "namespace/name" in all
	// namespaces, "name" in one namespace. The apiserver's cache writes a leading slash, and etcd
	// does not. Both read both forms.
	StartKey string `json:"start"`
}

// EncodeToken returns the token of the page after the object with the key last, relative to the
// listed prefix. etcd is true for a resource that is not in the apiserver's cache.
func EncodeToken(last string, rv uint64, etcd bool) string {
	start := "/" + last + "\x00"
	if etcd {
		start = start[1:]
	}
	data, err := json.Marshal(continueToken{"meta.k8s.io/v1", int64(rv), start})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// DecodeToken returns a page's start, relative to the listed prefix, and its resourceVersion; below
// 0, it asks for the most recent state. For malformed tokens the error is ErrDoubtful.
func DecodeToken(token string) (start string, rv int64, err error) {
	if start, rv, err = storage.DecodeContinue(token, ""); err != nil {
		return "", 0, ErrDoubtful
	}
	return start, rv, nil
}
