package object

import (
	"encoding/base64"
	"encoding/json"
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

// EncodeToken returns the token of the page that begins at a key, relative to the listed prefix.
func EncodeToken(start string, rv uint64) string {
	data, err := json.Marshal(continueToken{"meta.k8s.io/v1", int64(rv), start})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(data)
}
