package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	user       = 65532 // as distroless images have it, by the name of nonroot
	entrypoint = "/watchproxy"
)

// labels are on the index, the manifests and in the configurations.
func (r release) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "watchproxy",
		"org.opencontainers.image.description": "A caching watch proxy for the Kubernetes API",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/watchproxy/watchproxy",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.created.Format(time.RFC3339),
	}
}

// index is the image for all platforms.
func (r release) index() (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range r.binaries {
		if b.platform.OS != linux {
			continue // only listed
		}
		image, err := r.image(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &b.platform}})
	}
	return mutate.Annotations(index, r.labels()).(v1.ImageIndex), nil
}

// image is the one for a platform: two layers. The one with the authorities seldom changes.
func (r release) image(b binary) (v1.Image, error) {
	content, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	for _, files := range [][]file{
		r.base(),
		append(slices.Clone(r.licenses.files), file{name: "watchproxy", mode: 0o755, content: content}),
	} {
		layer, err := layerOf(files, r.created)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "image " + files[len(files)-1].name},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = b.platform.OS, b.platform.Architecture, b.platform.Variant
	config.Created = v1.Time{Time: r.created}
	config.Config = v1.Config{
		Entrypoint: []string{entrypoint},
		Cmd:        []string{"serve"},
		User:       strconv.Itoa(user) + ":" + strconv.Itoa(user), // numbers: runAsNonRoot cannot judge names
		WorkingDir: "/",
		Labels:     r.labels(),
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, r.labels()).(v1.Image), nil
}

// base is what there is beside the binary: a user, a place for temporary files, and the authorities that Mozilla trusts,
// for an upstream whose certificate is a public one.
func (r release) base() []file {
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		_ = pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
	}
	passwd := fmt.Sprintf("nonroot:x:%d:%d:nonroot:/:/sbin/nologin\n", user, user)
	return []file{
		{name: "tmp/", mode: 0o1777},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\n" + passwd)},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", user)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities.Bytes()},
	}
}

// file is one of root's; a directory if its name ends with a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

func layerOf(files []file, modified time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := addFile(w, f, modified); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9), tarball.WithCompressedCaching)
}

func addFile(w *tar.Writer, f file, modified time.Time) error {
	header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: modified, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if f.name[len(f.name)-1] == '/' {
		header.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(f.content)
	return err
}
