package access

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// robotToken returns a token for robot, signed like those of the apiserver's issuer, but with
// claims that the issuer would not sign.
func (w *world) robotToken(tb testing.TB, key *ecdsa.PrivateKey, lasts time.Duration) string {
	tb.Helper()
	robot, err := w.admin.CoreV1().ServiceAccounts(teamA).Get(tb.Context(), "robot", metav1.GetOptions{})
	cluster.MustT(tb, err)
	const day = 24 * time.Hour
	expires := time.Now().Add(lasts)
	claims, err := json.Marshal(map[string]any{
		"iss": issuer,
		"aud": []string{issuer},
		"sub": robotUser,
		"iat": expires.Add(-day).Unix(),
		"nbf": expires.Add(-day).Unix(),
		"exp": expires.Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      teamA,
			"serviceaccount": map[string]any{"name": "robot", "uid": robot.UID},
		},
	})
	cluster.MustT(tb, err)
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	cluster.MustT(tb, err)
	const half = 32 // size in bytes of each of the two numbers in a P-256 signature
	signature := make([]byte, 2*half)
	r.FillBytes(signature[:half])
	s.FillBytes(signature[half:])
	return signed + "." + encode(signature)
}

// issuer is the issuer that kubeapi configures.
const issuer = "https://kubernetes.default.svc"
