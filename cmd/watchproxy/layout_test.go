package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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
	"watchcache/upstream/ledger", "watchcache/upstream/client", "watchcache/upstream/servers", "watchcache/upstream/discovery",
	"watchcache/upstream/batch", "watchcache/upstream/upgrade", "watchcache/upstream/tasks", "watchcache/upstream/liveness", "watchcache/upstream/sharding", "watchcache/upstream/feed", "watchcache/upstream/fresh", "watchcache/upstream",
	"proxy/trace", "proxy/unwritable", "proxy/projection", "proxy/wire", "proxy/table", "proxy/fair", "proxy/access/chain", "proxy/access", "proxy/issuer", "proxy/exchange", "proxy/query", "proxy/derived", "proxy/grants", "proxy/watch", "proxy/audit", "proxy/read", "proxy/documents", "proxy/forward",
	"proxy/metrics", "proxy/browser", "proxy/admin", "proxy/conn", "proxy/conn/conntest", "proxy/h2/frame", "proxy/h2/upload", "proxy/h2", "proxy/listen", "proxy",
	"config/strict", "config/fieldpath", "config",
	"cmd/watchproxy/command", "cmd/watchproxy/memory", "cmd/watchproxy/check", "cmd/watchproxy/kubeconfig", "cmd/watchproxy/configfile", "cmd/watchproxy/observe", "cmd/watchproxy/openapi", "cmd/watchproxy/settings", "cmd/watchproxy/status", "cmd/watchproxy",
}

// packageLines is the maximum number of lines of a package, without tests.
const packageLines = 1600

// TestLayout prints the imports and the length of each package (with -v).
func TestLayout(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for at, name := range layers {
		seen[name] = true
		imports, lines := map[string]bool{}, 0
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines += bytes.Count(source, []byte("\n"))
			parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
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
		t.Logf("%5d lines  %-28s ─► %s", lines, name, strings.Join(uses, ", "))
		for _, used := range uses {
			if !slices.Contains(layers[:at], used) {
				t.Errorf("%s must not import %s", name, used)
			}
		}
		if lines > packageLines {
			t.Errorf("%s has %d lines, at most %d are allowed", name, lines, packageLines)
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

// TestWalks holds that the files and functions in .github/ARCHITECTURE.md exist, and that the page
// counts the borders of packages between them.
func TestWalks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", ".github", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	const fewest = 30 // steps of the walks
	steps := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|").FindAllSubmatch(page, -1)
	if len(steps) < fewest {
		t.Errorf("%d steps, want at least %d", len(steps), fewest)
	}
	for _, step := range steps {
		source, err := os.ReadFile(filepath.Join("..", "..", string(step[1])))
		if err != nil {
			t.Error(err)
		}
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + string(step[2]) + `\(`).Match(source) {
			t.Errorf("%s has no function %s", step[1], step[2])
		}
	}
	for _, heading := range []string{"A list", "An event", "A write"} {
		_, walk, _ := strings.Cut(string(page), "\n### "+heading)
		walk, _, _ = strings.Cut(walk, "\n#")
		var way []string // the packages, each once for each visit
		crossed, returns := 0, 0
		for _, step := range regexp.MustCompile("(?m)^\\| `([^`]+)/[^`/]+` \\|").FindAllStringSubmatch(walk, -1) {
			if len(way) > 0 && way[len(way)-1] == step[1] {
				continue
			}
			if len(way) > 0 {
				crossed++
			}
			if slices.Contains(way, step[1]) {
				returns++
			}
			way = append(way, step[1])
		}
		if says := fmt.Sprintf("\n%d borders of packages, %d return", crossed, returns); !strings.Contains(walk, says) || crossed < 2 {
			t.Errorf("%s: the page does not say %q", heading, says)
		}
	}
	for _, file := range regexp.MustCompile("\\(`([a-z0-9/]+\\.go)`\\)").FindAllSubmatch(page, -1) {
		if _, err := os.Stat(filepath.Join("..", "..", string(file[1]))); err != nil {
			t.Error(err)
		}
	}
}

// A type with more than typeFields fields or typeMethods methods is hard to read at once.
const typeFields, typeMethods = 15, 25

// TestTypes holds that .github/ARCHITECTURE.md gives a reason for each type that is larger.
func TestTypes(t *testing.T) {
	root := filepath.Join("..", "..")
	large := map[string]string{}
	for _, name := range layers {
		fields, methods := membersOf(t, filepath.Join(root, name))
		for of := range fields {
			methods[of] += 0
		}
		for of, n := range methods {
			if fields[of] > typeFields || n > typeMethods {
				large[name+" "+of] = fmt.Sprintf("%d, %d", fields[of], n)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(root, ".github", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` `(\\w+)` \\| (\\d+, \\d+) \\| [^|]+ \\|$").FindAllSubmatch(page, -1) {
		named[string(row[1])+" "+string(row[2])] = string(row[3])
	}
	if len(large) == 0 || !maps.Equal(large, named) {
		t.Errorf("types with more than %d fields or %d methods (fields, methods):\n%q\nARCHITECTURE.md has\n%q", typeFields, typeMethods, large, named)
	}
}

// fieldsOf counts the fields of a struct, and those of structs without a name within it.
func fieldsOf(s *ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		if inner, ok := f.Type.(*ast.StructType); ok {
			n += fieldsOf(inner)
		} else {
			n += max(1, len(f.Names))
		}
	}
	return n
}

// membersOf counts the fields and the methods of each type of a package.
func membersOf(t *testing.T, dir string) (fields, methods map[string]int) {
	t.Helper()
	fields, methods = map[string]int{}, map[string]int{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					fields[n.Name.Name] += fieldsOf(s)
				}
			case *ast.FuncDecl:
				if n.Recv != nil {
					of := strings.TrimPrefix(types.ExprString(n.Recv.List[0].Type), "*")
					of, _, _ = strings.Cut(of, "[")
					methods[of]++
				}
			}
			return true
		})
	}
	return fields, methods
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
	repositories := map[string]string{"otel": "opentelemetry-go", "sdk": "opentelemetry-go", "trace": "opentelemetry-go", "otlp": "opentelemetry-proto-go", "grpc": "grpc-go"}
	for _, m := range modules {
		name := path.Base(string(m[1]))
		if repository, other := repositories[name]; other {
			name = repository
		}
		if !bytes.Contains(table, []byte("/"+name+")")) && !bytes.Contains(table, []byte("/"+name+"/")) {
			t.Errorf("%s is missing", m[1])
		}
	}
}
