// Command image packs binaries of watchproxy into an OCI image for several platforms, and lists what they consist of. It
// needs no daemon, and what it writes depends on its arguments and the binaries alone.
//
//	image -version v1.2.3 -commit 0123abc -created 2026-01-02T03:04:05Z -name registry.example/watchproxy:v1.2.3 \
//		-licenses DIR -output image.tar -sbom sbom.cdx.json linux/amd64=watchproxy-amd64 linux/arm64=watchproxy-arm64
//
// DIR has the licence texts, which become the image's /licenses, and their table. Only binaries for
// Linux become images. All binaries must consist of the same modules, because one list describes all of them.
//
// The output is an OCI layout in a tar archive, which podman, skopeo, ctr and kind load as it is. The digest of the index,
// which is that of the image in a registry, is printed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// release is what the image is made of.
type release struct {
	version, commit, name string
	created               time.Time
	binaries              []binary
	licenses              licenses
}

// linux is the system whose binaries are packed.
const linux = "linux"

// binary is watchproxy for one platform.
type binary struct {
	platform v1.Platform
	path     string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var r release
	var created, output, sbom, texts string
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "the binaries' version")
	flags.StringVar(&r.commit, "commit", "", "the commit that they were built from")
	flags.StringVar(&created, "created", "", "time of the image and of all that is in it, RFC 3339")
	flags.StringVar(&r.name, "name", "", "name that the image is loaded by, with its tag")
	flags.StringVar(&output, "output", "", "tar archive to write")
	flags.StringVar(&texts, "licenses", "", "directory with licence texts and "+table)
	flags.StringVar(&sbom, "sbom", "", "CycloneDX file to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if r.version == "" || r.commit == "" || r.name == "" || output == "" || sbom == "" || texts == "" {
		return errors.New("-version, -commit, -name, -licenses, -output and -sbom are needed")
	}
	var err error
	if r.created, err = time.Parse(time.RFC3339, created); err != nil {
		return fmt.Errorf("-created: %w", err)
	}
	if r.licenses, err = readLicenses(texts); err != nil {
		return fmt.Errorf("-licenses: %w", err)
	}
	for _, arg := range flags.Args() {
		platform, path, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: must be PLATFORM=FILE", arg)
		}
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return fmt.Errorf("%q: %w", arg, err)
		}
		r.binaries = append(r.binaries, binary{*p, path})
	}
	if !slices.ContainsFunc(r.binaries, func(b binary) bool { return b.platform.OS == linux }) {
		return errors.New("no binary for Linux: linux/ARCHITECTURE=FILE")
	}

	// A module without a licence is an error of the list, so the list comes before the compression.
	if err := r.writeBOM(sbom); err != nil {
		return fmt.Errorf("%s: %w", sbom, err)
	}
	index, err := r.index()
	if err != nil {
		return err
	}
	if err := writeArchive(output, index, r); err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}
