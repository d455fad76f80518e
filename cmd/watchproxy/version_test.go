package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	noted := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}
	for name, test := range map[string]struct {
		version, commit         string
		info                    *debug.BuildInfo
		wantVersion, wantCommit string
	}{
		"stamped":          {"v2", "def", noted, "v2", "def"},
		"noted by Go":      {"", "", noted, "v1.2.3", ""},
		"a working copy":   {"", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "dev", ""},
		"nothing is known": {"", "", nil, "dev", ""},
	} {
		b := describe(test.version, test.commit, test.info)
		if b.Version != test.wantVersion || b.Commit != test.wantCommit || b.Go != runtime.Version() || !strings.Contains(b.Platform, "/") {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// If any code looks up methods by name, the linker keeps all exported methods of all types: half as
// much again.
func TestUnusedMethodsAreDropped(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	args := regexp.MustCompile(`(?m)^TAGS := (.*)$`).FindSubmatch(makefile)
	if args == nil || !bytes.Contains(makefile, []byte("go build -trimpath $(TAGS)")) {
		t.Fatal("the Makefile does not say with which tags releases are built")
	}
	build := exec.CommandContext(t.Context(), "go", append(append([]string{"build"}, strings.Fields(string(args[1]))...),
		"-buildvcs=false", "-ldflags", "-dumpdep", "-o", filepath.Join(t.TempDir(), "watchproxy"), ".")...)
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out[:min(len(out), 1000)])
	}
	if !bytes.Contains(out, []byte("main.main -> ")) {
		t.Fatal("the linker has not shown who calls whom")
	}
	for line := range bytes.Lines(out) {
		if bytes.Contains(line, []byte("<ReflectMethod>")) {
			t.Fatalf("methods are looked up by name: %s", line)
		}
	}
}
