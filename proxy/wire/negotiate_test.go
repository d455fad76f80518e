package wire

import (
	"strings"
	"testing"
)

func TestPlainJSON(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                    true,
		"application/json":                    true,
		"*/*":                                 true,
		"application/json, */*":               true,
		"application/json;charset=utf-8":      true,
		"application/json;q=0.9,*/*;q=0.1":    true,
		" application/json":                   true,
		"application/json;q=0":                false,
		"application/json;q=0.000":            false,
		"application/*":                       false,
		"application/yaml":                    false,
		"text/html":                           false,
		"application/yaml, application/json":  false,
		"application/vnd.kubernetes.protobuf": false,
		"application/json;stream=watch":       false,
		"application/json;pretty=1":           false,
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":                     false,
		"application/vnd.kubernetes.protobuf,application/json":                              false,
		"application/json;q=0.1,application/yaml":                                           false,
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json": false,
		"*/*, application/yaml":                                       false,
		"Application/JSON":                                            false,
		"application/json\t;charset=x":                                false,
		"application/json, application/yaml":                          true,
		"application/json, application/yaml;q =2":                     false,
		"application/json" + strings.Repeat(", application/yaml", 12): false,
		";": false,
	} {
		if got := PlainJSON(accept); got != want {
			t.Errorf("PlainJSON(%q) = %t, want %t", accept, got, want)
		}
	}
}

// Whatever is sent: no panic, and nothing that names another form first is
// taken for plain JSON.
func FuzzPlainJSON(f *testing.F) {
	for _, s := range []string{"", "*/*", "application/json;q=0.5,application/yaml", "application/json;as=Table", ",", ";q=", "application/json;q=NaN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		if !PlainJSON(accept) || accept == "" {
			return
		}
		first, _, _ := strings.Cut(accept, ",")
		mediaType, _, _ := strings.Cut(first, ";")
		mediaType = strings.ToLower(strings.TrimSpace(mediaType))
		if mediaType != "application/json" && mediaType != "*/*" {
			t.Errorf("%q is taken for plain JSON", accept)
		}
		if strings.Contains(strings.ToLower(first), "as=") {
			t.Errorf("%q asks for a transformation", accept)
		}
	})
}

func TestPretty(t *testing.T) {
	for _, tc := range []struct {
		parameter, agent string
		want             bool
	}{
		{"", "kubectl/v1.36.3", false},
		{"", "curl/8.0", true},
		{"", "Mozilla/5.0 (X11)", true},
		{"", "Wget/1.2", true},
		{"0", "curl/8.0", false},
		{"false", "curl/8.0", false},
		{"true", "kubectl", true},
		{"1", "kubectl", true},
	} {
		if got := Pretty(tc.parameter, tc.agent); got != tc.want {
			t.Errorf("Pretty(%q, %q) = %t", tc.parameter, tc.agent, got)
		}
	}
}
