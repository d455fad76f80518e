package exchange

import (
	"k8s.io/apiserver/pkg/storage"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// EncodeToken returns the token of the page after an object, in the form of the apiserver's cache.
// For a resource without that cache, it uses the form of etcd. The parameter last is the object's
// key, relative to the listed prefix.
func EncodeToken(last string, rv uint64, etcd bool) string {
	start := "/" + last + "\x00"
	if etcd {
		start = start[1:]
	}
	return object.EncodeToken(start, rv)
}

// DecodeToken returns the start of a page, relative to the listed prefix, and its resourceVersion.
// A negative resourceVersion asks for the most recent state. For malformed tokens the error is
// ErrDoubtful.
func DecodeToken(token string) (start string, rv int64, err error) {
	if start, rv, err = storage.DecodeContinue(token, ""); err != nil {
		return "", 0, ErrDoubtful
	}
	return start, rv, nil
}
