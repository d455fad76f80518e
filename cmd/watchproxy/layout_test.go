package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/watchproxy/watchproxy/"

// layers contains the packages of the product. Each package imports only packages in earlier
// layers.
var layers = []string{
	"watchcache/object", "watchcache/tree", "watchcache",
	"watchcache/upstream/client", "watchcache/upstream/discovery",
	"watchcache/upstream/feed", "watchcache/upstream/fresh", "watchcache/upstream",
	"proxy/projection", "proxy/wire", "proxy/table", "proxy/fair", "proxy/access", "proxy/issuer",
	"proxy/exchange", "proxy/derived", "proxy/grants", "proxy/watch", "proxy/audit", "proxy/read",
	"proxy/forward", "proxy/metrics", "proxy/admin", "proxy/conn", "proxy/h2", "proxy/listen", "proxy",
	"config",
	"cmd/watchproxy/status", "cmd/watchproxy",
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
