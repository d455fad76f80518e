package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

var directory = flag.String("release", "", "`DIRECTORY` that make release has written")

// releaseFiles are the files of the release with their checksums, which are checked.
func releaseFiles(t *testing.T) map[string]string {
	t.Helper()
	if *directory == "" {
		t.Skip("needs -release: make release-test builds it")
	}
	sums, err := os.Open(filepath.Join(*directory, "SHA256SUMS"))
	must(t, err)
	defer sums.Close()
	files := map[string]string{}
	for lines := bufio.NewScanner(sums); lines.Scan(); {
		sum, file, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			t.Fatalf("SHA256SUMS: %q", lines.Text())
		}
		content, err := os.ReadFile(filepath.Join(*directory, file))
		must(t, err)
		if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s has another checksum", file)
		}
		files[file] = sum
	}
	return files
}

// A release has four archives, the image, the chart and the list of modules, nothing else.
func TestReleaseIsComplete(t *testing.T) {
	files := releaseFiles(t)
	kinds := map[string]int{}
	for file := range files {
		for _, end := range []string{"-linux-amd64.tar.gz", "-linux-arm64.tar.gz", "-darwin-amd64.tar.gz", "-darwin-arm64.tar.gz", ".tgz", "image.tar", "sbom.cdx.json"} {
			if strings.HasSuffix(file, end) {
				kinds[end]++
			}
		}
	}
	if len(kinds) != 7 || len(files) != 7 {
		t.Errorf("the release has %v", slices.Sorted(maps.Keys(files)))
	}
	there, err := os.ReadDir(*directory)
	must(t, err)
	for _, entry := range there {
		if _, ok := files[entry.Name()]; !ok && entry.Name() != "SHA256SUMS" {
			t.Errorf("SHA256SUMS lacks %s", entry.Name())
		}
	}
}

// content returns the files of a compressed archive by their path below its single directory.
func content(t *testing.T, file string) map[string]*tar.Header {
	t.Helper()
	in, err := os.Open(file)
	must(t, err)
	defer in.Close()
	unzipped, err := gzip.NewReader(in)
	must(t, err)
	all := map[string]*tar.Header{}
	top := ""
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		dir, path, _ := strings.Cut(header.Name, "/")
		if top == "" {
			top = dir
		}
		if dir != top {
			t.Errorf("%s has %s beside %s", file, dir, top)
		}
		all[path] = header
	}
}

// Archives and the chart have their files, their licences, and one time for all.
func TestReleaseArchives(t *testing.T) {
	for file := range releaseFiles(t) {
		want := []string{"watchproxy", "LICENSE", "README.md", "CHANGELOG.md", "licenses/licenses.csv", "licenses/std/LICENSE", "licenses/github.com/prometheus/common/NOTICE"}
		switch {
		case strings.HasSuffix(file, ".tgz"):
			want = []string{"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "LICENSE", "templates/NOTES.txt"}
		case !strings.HasSuffix(file, ".tar.gz"):
			continue
		}
		files := content(t, filepath.Join(*directory, file))
		times := map[time.Time]bool{}
		for _, header := range files {
			times[header.ModTime] = true
		}
		if len(times) != 1 {
			t.Errorf("%s has files of %d times", file, len(times))
		}
		for _, path := range want {
			if header := files[path]; header == nil || header.Size == 0 {
				t.Errorf("%s has no %s", file, path)
			}
		}
		if binary := files["watchproxy"]; binary != nil && binary.Mode&0o111 != 0o111 {
			t.Errorf("%s: watchproxy has mode %o", file, binary.Mode)
		}
	}
}

// make push pushes the image and the chart of the release, by the digests that it writes.
func TestPush(t *testing.T) {
	files := releaseFiles(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	root := filepath.Dir(filepath.Dir(*directory))
	version := ""
	for file := range files {
		if of, ok := strings.CutSuffix(file, "-linux-amd64.tar.gz"); ok {
			version = strings.TrimPrefix(of, "watchproxy-")
		}
	}
	const limit = 10 * time.Minute // the first push compiles Helm
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	push := exec.CommandContext(ctx, "make", "push", "VERSION="+version, "IMAGE="+host+"/watchproxy", "CHARTS=oci://"+host+"/charts", "HELM_PUSH_FLAGS=--plain-http")
	push.Dir = root
	if out, err := push.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	digest := func(of string) string {
		text, err := os.ReadFile(filepath.Join(root, "bin", "build", of+".digest"))
		must(t, err)
		return strings.TrimSpace(string(text))
	}

	reference, err := name.NewDigest(host+"/watchproxy@"+digest("image"), name.Insecure)
	must(t, err)
	index, err := remote.Index(reference)
	must(t, err)
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Errorf("%v, image %+v", err, manifest)
	}
	tag, err := remote.Head(reference.Context().Tag(strings.TrimPrefix(version, "v")))
	if err != nil || tag.Digest.String() != digest("image") {
		t.Errorf("tag %s is %v, %v", version, tag, err)
	}

	reference, err = name.NewDigest(host+"/charts/watchproxy@"+digest("chart"), name.Insecure)
	must(t, err)
	chart, err := remote.Image(reference)
	must(t, err)
	layers, err := chart.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v, %d layers", err, len(layers))
	}
	of, err := layers[0].Digest()
	must(t, err)
	if !slices.Contains(slices.Collect(maps.Values(files)), of.Hex) {
		t.Errorf("the chart in the registry, %s, is not the release's", of)
	}
}

// The chart of a release differs from the chart of other commits: it doesn't say that it is unreleased.
func TestChartPackage(t *testing.T) {
	releaseFiles(t)
	root := filepath.Dir(filepath.Dir(*directory))
	inRepository, err := os.ReadFile(filepath.Join(root, "charts", "watchproxy", "Chart.yaml"))
	must(t, err)
	first := bytes.Contains(inRepository, []byte("watchproxy.dev/unreleased")) // there has been no release
	const limit = 10 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for version, test := range map[string]struct {
		chart, app string
		unreleased bool
	}{
		"v7.8.9":              {"7.8.9", "7.8.9", false},
		"v7.8.9-rc.1":         {"7.8.9-rc.1", "7.8.9-rc.1", false},
		"v7.8.9-3-g0123456":   {"0.0.0-gv7.8.9-3-g0123456", "7.8.9-3-g0123456", true},
		"0123456-dirty":       {"0.0.0-g0123456-dirty", "0123456-dirty", true},
		"v7.8.9-rc.1-1-g0123": {"0.0.0-gv7.8.9-rc.1-1-g0123", "7.8.9-rc.1-1-g0123", true},
	} {
		dir := t.TempDir()
		pack := exec.CommandContext(ctx, "make", "chart-package", "VERSION="+version, "RELEASE="+dir)
		pack.Dir = root
		if out, err := pack.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", version, err, out)
			continue
		}
		file := filepath.Join(dir, "watchproxy-"+test.chart+".tgz")
		out, err := exec.CommandContext(ctx, "tar", "-xzOf", file, "watchproxy/Chart.yaml", "watchproxy/README.md").Output()
		if err != nil {
			t.Errorf("%s: %v", version, err)
		}
		for _, line := range []string{"version: " + test.chart, "appVersion: " + test.app} {
			if !bytes.Contains(out, []byte("\n"+line+"\n")) {
				t.Errorf("%s: Chart.yaml lacks %q:\n%.600s", version, line, out)
			}
		}
		if image := "image: ghcr.io/watchproxy/watchproxy:" + test.app + "\n"; !bytes.Contains(out, []byte(image)) {
			t.Errorf("%s: Chart.yaml lacks %q", version, image)
		}
		if got, want := bytes.Contains(out, []byte(`artifacthub.io/prerelease: "true"`)), strings.Contains(test.chart, "-"); got != want {
			t.Errorf("%s: marked as prerelease: %v", version, got)
		}
		if got := bytes.Contains(bytes.ToLower(out), []byte("unreleased")); got != (test.unreleased && first) {
			t.Errorf("%s: unreleased %v", version, got)
		}
		// The documents of a release are read outside of a checkout.
		from := "charts/watchproxy"
		if !test.unreleased {
			from = "oci://ghcr.io/watchproxy/charts/watchproxy --version " + test.chart
		}
		relative := bytes.Contains(out, []byte("](../"))
		if !bytes.Contains(out, []byte("    helm install watchproxy "+from+" ")) || relative != test.unreleased {
			t.Errorf("%s: README.md installs another chart than %s, or has relative links: %v", version, from, relative)
		}
	}
}
