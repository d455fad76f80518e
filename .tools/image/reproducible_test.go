package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// packed packs this very test's binary, which has modules to list.
func packed(t *testing.T, args ...string) (image, sbom []byte) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	output, list := filepath.Join(dir, "image.tar"), filepath.Join(dir, "sbom.json")
	err = run(append([]string{
		"-version", "v1", "-commit", "abc", "-created", "2026-01-02T03:04:05Z", "-name", "registry.example/watchproxy:v1",
		"-output", output, "-sbom", list,
	}, append(args, "linux/amd64="+self)...))
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]*[]byte{output: &image, list: &sbom} {
		if *content, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return image, sbom
}

// The same arguments make the same bytes, others do not.
func TestReproducible(t *testing.T) {
	image, sbom := packed(t)
	again, list := packed(t)
	if !bytes.Equal(image, again) || !bytes.Equal(sbom, list) {
		t.Error("the second time it is another")
	}
	if other, list := packed(t, "-version", "v2"); bytes.Equal(image, other) || bytes.Equal(sbom, list) {
		t.Error("another version makes no difference")
	}
}

func TestBOM(t *testing.T) {
	_, sbom := packed(t)
	var bom cdx.BOM
	if err := json.Unmarshal(sbom, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Name != "watchproxy" || bom.Metadata.Component.Version != "v1" {
		t.Errorf("%+v", bom.Metadata)
	}
	var found int
	for _, c := range *bom.Components {
		if strings.HasPrefix(c.PackageURL, "pkg:golang/github.com/CycloneDX/cyclonedx-go@v") || strings.HasPrefix(c.PackageURL, "pkg:golang/std@go1.") {
			found++
		}
	}
	if found != 2 || len(*(*bom.Dependencies)[0].Dependencies) != len(*bom.Components) {
		t.Errorf("found %d of two in %s", found, sbom)
	}
}

func TestRefusesArguments(t *testing.T) {
	good := []string{"-version", "v1", "-commit", "abc", "-created", "2026-01-02T03:04:05Z", "-name", "n:v1", "-output", "/dev/null", "-sbom", "/dev/null"}
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"nothing":      {nil, "-version"},
		"no time":      {append(good, "-created", "today"), "-created"},
		"no binaries":  {good, "PLATFORM=FILE"},
		"no platform":  {append(good, "watchproxy"), `"watchproxy"`},
		"no such file": {append(good, "linux/amd64=/no/such"), "/no/such"},
	} {
		if err := run(test.args); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
