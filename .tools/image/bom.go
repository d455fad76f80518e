package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes the modules that the binaries were linked from, with their licences, in CycloneDX's
// JSON. The binaries of all platforms must have the same modules, because there is one list for all.
func (r release) writeBOM(path string) error {
	var modules []cdx.Component
	var goVersion string
	for i, b := range r.binaries {
		info, err := buildinfo.ReadFile(b.path)
		if err != nil {
			return err
		}
		of := components(info)
		if i > 0 && !slices.EqualFunc(modules, of, func(a, b cdx.Component) bool { return a.BOMRef == b.BOMRef }) {
			return fmt.Errorf("%s and %s are built from different modules", r.binaries[0].path, b.path)
		}
		modules, goVersion = of, info.GoVersion
	}
	modules = append(modules, cdx.Component{
		Type: cdx.ComponentTypeLibrary, Name: "std", Version: goVersion, PackageURL: "pkg:golang/std@" + goVersion, BOMRef: "pkg:golang/std@" + goVersion,
	})
	modules = append(modules, authorities(modules)...)
	if err := r.licenses.setOn(modules); err != nil {
		return err
	}

	const self = "watchproxy"
	refs := make([]string, len(modules))
	for i, m := range modules {
		refs[i] = m.BOMRef
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.created.Format(time.RFC3339),
		Component: &cdx.Component{
			Type: cdx.ComponentTypeApplication, Name: self, Version: r.version, BOMRef: self,
			Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
			Properties: &[]cdx.Property{{Name: "commit", Value: r.commit}},
		},
	}
	bom.Components = &modules
	bom.Dependencies = &[]cdx.Dependency{{Ref: self, Dependencies: &refs}}

	out, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6), out.Close())
}

// authorities is the module with the image's certificate authorities, unless it is listed already.
// It is linked into this command, not into the binaries.
func authorities(listed []cdx.Component) []cdx.Component {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	return slices.DeleteFunc(components(info), func(c cdx.Component) bool {
		return c.Name != "golang.org/x/crypto/x509roots/fallback" ||
			slices.ContainsFunc(listed, func(l cdx.Component) bool { return l.BOMRef == c.BOMRef })
	})
}

// components are the modules of a binary. Where one was replaced, its replacement is what was linked.
func components(info *buildinfo.BuildInfo) []cdx.Component {
	var all []cdx.Component
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url, BOMRef: url}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
		}
		all = append(all, c)
	}
	return all
}
