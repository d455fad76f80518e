package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const mimeYAML = "application/yaml"

// Indent writes a JSON body for human readers. length is the IndentedLength of the body.
func Indent(body []byte, length int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(length))
	if err := json.Indent(&b, bytes.TrimSuffix(body, []byte{'\n'}), "", "  "); err != nil {
		return nil, fmt.Errorf("indent: %w", err)
	}
	return b.Bytes(), nil
}

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
		body = must(Indent(body, IndentedLength(body)))
	}
	return body, mimeJSON
}
