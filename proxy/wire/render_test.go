package wire

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// An error that YAML cannot express is written in JSON.
func TestStatusInYAML(t *testing.T) {
	for message, want := range map[string]string{"no such thing": mimeYAML, "a\u007fb": mimeJSON, "a\ufffeb": mimeJSON} {
		body, contentType := Choice{MediaType: YAML}.Status(&metav1.Status{Message: message})
		var got metav1.Status
		var err error
		if contentType == mimeYAML {
			err = yaml.Unmarshal(body, &got)
		} else {
			err = json.Unmarshal(body, &got)
		}
		if contentType != want || err != nil || got.Message != message || strings.HasPrefix(string(body), "{") != (want == mimeJSON) {
			t.Errorf("%q: %s, %v\n%s", message, contentType, err, body)
		}
	}
}
