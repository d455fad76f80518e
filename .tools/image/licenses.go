package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"io/fs"
	"maps"
	"os"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// licenses are the licence texts of all that is in the image, and a table of them. `make licenses`
// writes them to a directory with go-licenses.
type licenses struct {
	files []file
	rows  [][]string // a library and the SPDX name of its licence; some libraries have several
}

// table is the file with the rows.
const table = "licenses.csv"

func readLicenses(dir string) (licenses, error) {
	var l licenses
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = pathpkg.Join("licenses", filepath.ToSlash(name))
		if entry.IsDir() {
			l.files = append(l.files, file{name: name + "/", mode: 0o755})
			return nil
		}
		content, err := os.ReadFile(path)
		l.files = append(l.files, file{name: name, mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return licenses{}, err
	}
	content, err := os.ReadFile(filepath.Join(dir, table))
	if err != nil {
		return licenses{}, err
	}
	rows := csv.NewReader(bytes.NewReader(content))
	rows.FieldsPerRecord = 2
	if l.rows, err = rows.ReadAll(); err != nil {
		return licenses{}, fmt.Errorf("%s: %w", table, err)
	}
	return l, nil
}

// setOn gives components their licences. A library is part of the module with the longest path that
// is the library's path or a directory above it. A component without a licence is an error, because
// nobody may distribute it.
func (l licenses) setOn(components []cdx.Component) error {
	of := map[string]map[string]bool{}
	for _, row := range l.rows {
		within := func(c cdx.Component) bool { return row[0] == c.Name || strings.HasPrefix(row[0], c.Name+"/") }
		owners := slices.DeleteFunc(slices.Clone(components), func(c cdx.Component) bool { return !within(c) })
		if len(owners) == 0 {
			continue
		}
		owner := slices.MaxFunc(owners, func(a, b cdx.Component) int { return cmp.Compare(len(a.Name), len(b.Name)) }).Name
		if of[owner] == nil {
			of[owner] = map[string]bool{}
		}
		of[owner][row[1]] = true
	}
	for i, c := range components {
		if len(of[c.Name]) == 0 {
			return fmt.Errorf("%s has no licence in %s", c.Name, table)
		}
		all := cdx.Licenses{}
		for _, id := range slices.Sorted(maps.Keys(of[c.Name])) {
			all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: id}})
		}
		components[i].Licenses = &all
	}
	return nil
}
