package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// licensesOf is a directory with a licence for each module of a binary, except for those named.
func licensesOf(t *testing.T, binary string, except ...string) string {
	t.Helper()
	dir := t.TempDir()
	info, err := buildinfo.ReadFile(binary)
	must(t, err)
	rows := "std,BSD-3-Clause\nelsewhere.example/unused,MIT\n"
	for _, c := range components(info) {
		if slices.Contains(except, c.Name) {
			continue
		}
		rows += c.Name + "/package,Apache-2.0\n" + c.Name + ",MIT\n" + c.Name + "/other,MIT\n"
		path := filepath.Join(dir, filepath.FromSlash(c.Name))
		must(t, os.MkdirAll(path, 0o700))
		must(t, os.WriteFile(filepath.Join(path, "LICENSE"), []byte("licence of "+c.Name), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dir, table), []byte(rows), 0o600))
	return dir
}

// packed packs this very test's binary, which has modules to list.
func packed(t *testing.T, args ...string) (image, sbom []byte) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	output, list := filepath.Join(dir, "image.tar"), filepath.Join(dir, "sbom.json")
	err = run(append([]string{
		"-licenses", licensesOf(t, self), "-version", "v1", "-commit", "abc", "-created", "2026-01-02T03:04:05Z", "-name", "registry.example/watchproxy:v1",
		"-output", output, "-sbom", list,
	}, append(args, "linux/amd64="+self)...))
	must(t, err)
	for path, content := range map[string]*[]byte{output: &image, list: &sbom} {
		if *content, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return image, sbom
}

// The same arguments make the same bytes. Other arguments do not, except binaries for other systems:
// only their licences are checked.
func TestReproducible(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	image, sbom := packed(t)
	again, list := packed(t, "darwin/arm64="+self)
	if !bytes.Equal(image, again) || !bytes.Equal(sbom, list) {
		t.Error("the second time it is another, or a binary for macOS changes it")
	}
	checkBOM(t, sbom)
	if other, list := packed(t, "-version", "v2"); bytes.Equal(image, other) || bytes.Equal(sbom, list) {
		t.Error("another version makes no difference")
	}
}

func checkBOM(t *testing.T, sbom []byte) {
	t.Helper()
	var bom cdx.BOM
	must(t, json.Unmarshal(sbom, &bom))
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Name != "watchproxy" || bom.Metadata.Component.Version != "v1" {
		t.Errorf("%+v", bom.Metadata)
	}
	var found int
	for _, c := range *bom.Components {
		var ids []string
		if c.Licenses != nil {
			for _, l := range *c.Licenses {
				ids = append(ids, l.License.ID)
			}
		}
		want := "Apache-2.0 MIT"
		if c.Name == "std" {
			want = "BSD-3-Clause"
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s has licences %q, want %q", c.Name, got, want)
		}
		for _, url := range []string{"github.com/CycloneDX/cyclonedx-go@v", "golang.org/x/crypto/x509roots/fallback@v", "std@go1."} {
			if strings.HasPrefix(c.PackageURL, "pkg:golang/"+url) {
				found++
			}
		}
	}
	if found != 3 || len(*(*bom.Dependencies)[0].Dependencies) != len(*bom.Components) {
		t.Errorf("found %d of three in %s", found, sbom)
	}
}

// A module without a licence in the table fails the build, and so does a directory without a table.
func TestRefusesUnlicensed(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	const unlicensed = "github.com/CycloneDX/cyclonedx-go"
	for dir, says := range map[string]string{
		licensesOf(t, self, unlicensed):     unlicensed + " has no licence",
		t.TempDir():                         table,
		filepath.Join(t.TempDir(), "never"): "never",
	} {
		err := run([]string{
			"-licenses", dir, "-version", "v1", "-commit", "abc", "-created", "2026-01-02T03:04:05Z", "-name", "registry.example/watchproxy:v1",
			"-output", filepath.Join(t.TempDir(), "image.tar"), "-sbom", filepath.Join(t.TempDir(), "sbom.json"), "linux/amd64=" + self,
		})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// A library belongs to the innermost module that it is in, and paths are compared by element.
func TestLicensesOfNestedModules(t *testing.T) {
	modules := []cdx.Component{{Name: "a.example/m"}, {Name: "a.example/m/sub"}, {Name: "a.example/m2"}}
	l := licenses{rows: [][]string{
		{"a.example/m/pkg", "MIT"}, {"a.example/m/sub/pkg", "ISC"}, {"a.example/m2", "BSD-3-Clause"}, {"a.example/m2", "Apache-2.0"}, {"a.example/m/pkg2", "MIT"},
	}}
	must(t, l.setOn(modules))
	for i, want := range []string{"MIT", "ISC", "Apache-2.0 BSD-3-Clause"} {
		var ids []string
		for _, choice := range *modules[i].Licenses {
			ids = append(ids, choice.License.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s", modules[i].Name, got, want)
		}
	}
}

func TestRefusesArguments(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	good := []string{"-licenses", licensesOf(t, self), "-version", "v1", "-commit", "abc", "-created", "2026-01-02T03:04:05Z", "-name", "n:v1", "-output", "/dev/null", "-sbom", "/dev/null"}
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"nothing":      {nil, "-version"},
		"no time":      {append(good, "-created", "today"), "-created"},
		"no binaries":  {good, "linux/ARCHITECTURE=FILE"},
		"no Linux":     {append(good, "darwin/arm64="+self), "linux/ARCHITECTURE=FILE"},
		"no platform":  {append(good, "watchproxy"), `"watchproxy"`},
		"no such file": {append(good, "linux/amd64=/no/such"), "/no/such"},
	} {
		if err := run(test.args); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
