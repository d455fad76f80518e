package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	noted := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	for name, test := range map[string]struct {
		version, commit         string
		info                    *debug.BuildInfo
		wantVersion, wantCommit string
	}{
		"stamped":          {"v2", "def", noted, "v2", "def"},
		"noted by Go":      {"", "", noted, "v1.2.3", "abc-dirty"},
		"a working copy":   {"", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "dev", ""},
		"nothing is known": {"", "", nil, "dev", ""},
	} {
		b := describe(test.version, test.commit, test.info)
		if b.Version != test.wantVersion || b.Commit != test.wantCommit || b.Go != runtime.Version() || !strings.Contains(b.Platform, "/") {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

func TestVersionJSON(t *testing.T) {
	out, err := execute("version", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var b build
	if err := json.Unmarshal([]byte(out), &b); err != nil || b != buildOf() {
		t.Errorf("%v in %s", err, out)
	}
	if _, err := execute("version", "-o", "yaml"); err == nil || !strings.Contains(err.Error(), `"yaml"`) {
		t.Errorf("got %v", err)
	}
}
