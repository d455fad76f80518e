package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The notes of a release are the changelog's section of its version.
func TestReleaseNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "CHANGELOG.md")
	changelog := "# Changelog\n\nAbout.\n\n## [Unreleased]\n\n### Added\n\n- new\n\n## [1.2.3-rc.1] - 2026-02-02\n\n- candidate\n\n" +
		"## [1.2.3] - 2026-01-01\n\n### Fixed\n\n- old\n\n## [1.2.2] - 2025-01-01\n\n## [1.2.1] - 2024-01-01\n\n- oldest\n"
	if err := os.WriteFile(file, []byte(changelog), 0o600); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"v1.2.3":            "### Fixed\n\n- old\n",
		"v1.2.3-rc.1":       "- candidate\n",
		"v1.2.1":            "- oldest\n",
		"v1.2.3-4-gabcdef0": "### Added\n\n- new\n",
		"v1.2.2":            "", // no text
		"v1.2.0":            "", // no section
		"v1a2b3":            "### Added\n\n- new\n",
	} {
		run := exec.CommandContext(t.Context(), "make", "--silent", "--no-print-directory", "release-notes", "VERSION="+version, "CHANGELOG="+file)
		run.Dir = filepath.Join("..", "..")
		out, err := run.Output()
		if string(out) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %v, %q instead of %q", version, err, out, want)
		}
	}
}
