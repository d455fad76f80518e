package main

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// repository is the directory of the repository.
var repository = filepath.Join("..", "..")

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// Dependabot updates each Go module of the repository, and the actions of the workflows.
func TestDependabotKnowsAllModules(t *testing.T) {
	var modules []string
	err := fs.WalkDir(os.DirFS(repository), ".", func(file string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (file == ".git" || file == "bin") {
			return fs.SkipDir
		}
		if path.Base(file) == "go.mod" {
			modules = append(modules, path.Join("/", path.Dir(file)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var dependabot struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directory   string
			Directories []string
		}
	}
	readYAML(t, filepath.Join(repository, ".github", "dependabot.yml"), &dependabot)
	updated := map[string][]string{}
	for _, u := range dependabot.Updates {
		updated[u.Ecosystem] = append(updated[u.Ecosystem], u.Directories...)
		if u.Directory != "" {
			updated[u.Ecosystem] = append(updated[u.Ecosystem], u.Directory)
		}
	}
	slices.Sort(modules)
	slices.Sort(updated["gomod"])
	if !slices.Equal(modules, updated["gomod"]) || len(updated["github-actions"]) != 1 {
		t.Errorf("dependabot updates %v, the modules are %v", updated, modules)
	}
}

// permissions maps the scopes of a workflow. A scalar such as write-all does not decode into it.
type permissions map[string]string

// workflow contains the parts of a workflow that TestWorkflows reads.
type workflow struct {
	Permissions permissions
	Jobs        map[string]struct {
		Uses        string
		Permissions permissions
		Timeout     int `yaml:"timeout-minutes"`
		Steps       []struct{ Uses, Run string }
	}
}

var (
	pinned      = regexp.MustCompile(`uses: +(\./\S+|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)\n`)
	makeCommand = regexp.MustCompile(`(?m)^ *make (?:--\S+ )*([\w-]+)`)
	goVersion   = regexp.MustCompile(`go-version: '([\d.]+)\.x'`)
	makeTarget  = regexp.MustCompile(`(?m)^([\w-]+):`)
)

// Each job of a workflow has a timeout and only the permissions that it lists. Actions are pinned
// by commit. Only the publishing job may write anything except results of scans. All Make targets
// exist.
func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, target := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[target[1]] = true
	}
	files, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%v: %v", files, err)
	}
	used := map[string]bool{}
	for _, file := range files {
		base := filepath.Base(file)
		var w workflow
		readYAML(t, file, &w)
		if w.Permissions == nil || len(w.Permissions) > 0 {
			t.Errorf("%s: permissions %v, want {}", base, w.Permissions)
		}
		for name, job := range w.Jobs {
			if job.Permissions == nil || job.Uses == "" && job.Timeout == 0 {
				t.Errorf("%s: job %s has permissions %v, timeout %d", base, name, job.Permissions, job.Timeout)
			}
			for scope, access := range job.Permissions {
				if access != "read" && scope != "security-events" && name != "publish" && name != "scorecard" {
					t.Errorf("%s: job %s may %s %s", base, name, access, scope)
				}
			}
			for _, step := range job.Steps {
				for _, command := range makeCommand.FindAllStringSubmatch(step.Run, -1) {
					used[command[1]] = true
					if !targets[command[1]] {
						t.Errorf("%s: job %s: there is no target %s", base, name, command[1])
					}
				}
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range goVersion.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(gomod), "\ngo "+version[1]+".") {
				t.Errorf("%s builds with Go %s, go.mod with another", base, version[1])
			}
		}
		if all, good := strings.Count(string(text), "setup-go@"), len(goVersion.FindAllString(string(text), -1)); all != good {
			t.Errorf("%s: %d of %d jobs name their Go version", base, good, all)
		}
		if all, good := strings.Count(string(text), "uses: "), len(pinned.FindAllString(string(text), -1)); all != good {
			t.Errorf("%s: %d of %d actions are pinned by commit, with their version", base, good, all)
		}
	}
	for _, target := range []string{"test", "release-test", "reproducible", "release", "release-notes", "push", "vuln", "build"} {
		if !used[target] {
			t.Errorf("no workflow runs make %s, only %v", target, slices.Sorted(maps.Keys(used)))
		}
	}
}

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
		run.Dir = repository
		out, err := run.Output()
		if string(out) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %v, %q instead of %q", version, err, out, want)
		}
	}
}

// changelogHeading matches the heading of a version or of a kind of change.
var changelogHeading = regexp.MustCompile(`^(# Changelog|## \[(Unreleased|\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?\] - \d{4}-\d\d-\d\d)\]?|### (Added|Changed|Deprecated|Removed|Fixed|Security))$`)

// The changelog has the form of keepachangelog.com.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	section, kinds := "", map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "#") {
			continue
		}
		if !changelogHeading.MatchString(line) {
			t.Errorf("heading %q", line)
		}
		if strings.HasPrefix(line, "## ") {
			section, kinds = line, map[string]bool{}
		} else if strings.HasPrefix(line, "### ") && kinds[line] {
			t.Errorf("%s has %q twice", section, line)
		}
		kinds[line] = true
	}
	if !strings.Contains(string(text), "\n## [Unreleased]\n") {
		t.Error("there is no section [Unreleased]")
	}
}
