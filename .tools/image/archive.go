package main

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeArchive writes an image as an OCI layout, by the name that is given to it when it is loaded.
func writeArchive(path string, index v1.ImageIndex, r release) (err error) {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          r.name,
		"org.opencontainers.image.ref.name": r.name,
	}))
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pack(out, dir, r), out.Close())
}

// pack writes a directory's files in the order of their names, with the release's time.
func pack(out *os.File, dir string, r release) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		const directory, regular = 0o755, 0o644
		if entry.IsDir() {
			return addFile(w, file{name: name + "/", mode: directory}, r.created)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return addFile(w, file{name: name, mode: regular, content: content}, r.created)
	})
	return errors.Join(err, w.Close())
}
