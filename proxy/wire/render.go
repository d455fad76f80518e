package wire

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const mimeYAML = "application/yaml"

// Status writes the body of an error.
func (c Choice) Status(s *metav1.Status) (body []byte, contentType string) {
	if c.MediaType == Protobuf {
		return statusEnvelope.append(nil, must(s.Marshal())), mimeProtobuf
	}
	body = append(must(json.Marshal(s)), '\n')
	if c.MediaType == YAML {
		if text, err := yaml.JSONToYAML(body); err == nil { // it refuses some characters that JSON has
			return text, mimeYAML
		}
	}
	if c.Pretty {
		body = must(json.MarshalIndent(s, "", "  "))
	}
	return body, mimeJSON
}
