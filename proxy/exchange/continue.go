package exchange

import "k8s.io/apiserver/pkg/storage"

// EncodeToken returns the token of the page after the object with the key last, relative to the
// listed prefix. It is kube-apiserver's own, so a list can begin here and continue there or at
// another replica, and the other way round. In a token of the apiserver's cache the key begins with
// a slash, in one of etcd it does not. etcd is true for a resource that is not in that cache.
func EncodeToken(last string, rv uint64, etcd bool) string {
	prefix := "."
	if etcd {
		prefix = "./"
	}
	token, err := storage.EncodeContinue("./"+last+"\x00", prefix, int64(rv))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return token
}

// DecodeToken returns a page's start, relative to the listed prefix, and its resourceVersion; below
// 0, it asks for the most recent state. For malformed tokens the error is ErrDoubtful.
func DecodeToken(token string) (start string, rv int64, err error) {
	if start, rv, err = storage.DecodeContinue(token, ""); err != nil {
		return "", 0, ErrDoubtful
	}
	return start, rv, nil
}
