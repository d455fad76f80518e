package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const mimeYAML = "application/yaml"

// Rendered reports whether the choice is a form for human readers. Render makes such a form from
// JSON.
func (c Choice) Rendered() bool { return c.Pretty || c.Encoding == YAML }

// Render writes a JSON body in the form of the choice, and returns its Content-Type.
func (c Choice) Render(body []byte) (rendered []byte, contentType string, err error) {
	if c.Encoding == YAML {
		rendered, err = yaml.JSONToYAML(body)
		if err != nil {
			return nil, "", fmt.Errorf("write YAML: %w", err)
		}
		return rendered, mimeYAML, nil
	}
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSuffix(body, []byte{'\n'}), "", "  "); err != nil {
		return nil, "", fmt.Errorf("indent: %w", err)
	}
	return b.Bytes(), mimeJSON, nil
}

// Status writes the body of an error.
func (c Choice) Status(s *metav1.Status) (body []byte, contentType string) {
	if c.Encoding == Protobuf {
		return statusEnvelope.append(nil, must(s.Marshal())), mimeProtobuf
	}
	body = append(must(json.Marshal(s)), '\n')
	if !c.Rendered() {
		return body, mimeJSON
	}
	rendered, contentType, err := c.Render(body)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return rendered, contentType
}
