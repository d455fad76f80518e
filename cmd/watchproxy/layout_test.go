package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/watchproxy/watchproxy/"

// layers contains the packages of the product. Each package imports only packages in earlier
// layers.
var layers = []string{
	"watchcache/age", "watchcache/object/labelset", "watchcache/object", "watchcache/tree", "watchcache/filter", "watchcache/waiters", "watchcache", "watchcache/cachetest",
	"watchcache/upstream/ledger", "watchcache/upstream/statuscode", "watchcache/upstream/list", "watchcache/upstream/client", "watchcache/upstream/servers", "watchcache/upstream/discovery",
	"watchcache/upstream/batch", "watchcache/upstream/upgrade", "watchcache/upstream/tasks", "watchcache/upstream/liveness", "watchcache/upstream/feed", "watchcache/upstream/fresh", "watchcache/upstream",
	"proxy/projection", "proxy/wire", "proxy/table", "proxy/fair", "proxy/access/chain", "proxy/access", "proxy/issuer", "proxy/exchange", "proxy/query", "proxy/derived", "proxy/grants", "proxy/watch", "proxy/audit", "proxy/read", "proxy/forward",
	"proxy/metrics", "proxy/browser", "proxy/admin", "proxy/conn", "proxy/conn/conntest", "proxy/h2/frame", "proxy/h2/upload", "proxy/h2", "proxy/listen", "proxy",
	"config/strict", "config/fieldpath", "config",
	"cmd/watchproxy/command", "cmd/watchproxy/memory", "cmd/watchproxy/kubeconfig", "cmd/watchproxy/configfile", "cmd/watchproxy/settings", "cmd/watchproxy/status", "cmd/watchproxy",
}

// TestLayout holds that imports between packages point one way. With -v, it prints them.
func TestLayout(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for at, name := range layers {
		seen[name] = true
		imports := map[string]bool{}
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range parsed.Imports {
				path, _ := strconv.Unquote(s.Path.Value)
				if of, ours := strings.CutPrefix(path, module); ours {
					imports[of] = true
				}
			}
		}
		uses := slices.Sorted(maps.Keys(imports))
		t.Logf("%-28s ─► %s", name, strings.Join(uses, ", "))
		for _, used := range uses {
			if !slices.Contains(layers[:at], used) {
				t.Errorf("%s must not import %s", name, used)
			}
		}
	}
	for _, top := range []string{"cmd", "proxy", "watchcache", "config"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			of, _ := filepath.Rel(root, filepath.Dir(path))
			if of = filepath.ToSlash(of); err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !seen[of] {
				t.Errorf("%s is in none of the layers", of)
				seen[of] = true
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestClocks holds that no package measures time by the wall clock, as a time kept in Unix
// nanoseconds would. A clock that is set back would make connections look silent, and entries
// young. A time.Time has a reading of the monotonic clock, too.
func TestClocks(t *testing.T) {
	for _, name := range layers {
		files, err := filepath.Glob(filepath.Join("..", "..", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// A moment is the monotonic time since the start of the process.
			if clock := filepath.Join("watchcache", "clock.go"); bytes.Contains(source, []byte(".UnixNano()")) && !strings.HasSuffix(file, clock) &&
				!strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s uses Unix nanoseconds", file)
			}
		}
	}
}

// TestDependencies holds that .github/DEPENDENCIES.md names each module that the project imports.
func TestDependencies(t *testing.T) {
	root := filepath.Join("..", "..")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(root, ".github", "DEPENDENCIES.md"))
	if err != nil {
		t.Fatal(err)
	}
	modules := regexp.MustCompile(`(?m)^(?:require |\t)(\S+?)(?:[/.]v\d+)? v\S+$`).FindAllSubmatch(mod, -1)
	if len(modules) < 30 {
		t.Errorf("go.mod has %d direct requirements", len(modules))
	}
	for _, m := range modules {
		name := path.Base(string(m[1]))
		if !bytes.Contains(table, []byte("/"+name+")")) && !bytes.Contains(table, []byte("/"+name+"/")) {
			t.Errorf("%s is missing", m[1])
		}
	}
}
