package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// writable returns an error unless a file can be written, or created with its directories. A
// rotated file is renamed and created again, so its directory must be writable too. writable
// changes nothing.
func writable(file string, rotated bool) error {
	if file == "-" {
		return nil
	}
	info, err := os.Stat(file)
	switch {
	case os.IsNotExist(err):
		return writableDirectory(filepath.Dir(file))
	case err != nil:
		return err
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeDevice == 0:
		return fmt.Errorf("%s is not a file", file)
	}
	if err := unix.Access(file, unix.W_OK); err != nil {
		return err
	}
	if rotated && info.Mode().IsRegular() {
		if err := writableDirectory(filepath.Dir(file)); err != nil {
			return fmt.Errorf("the log cannot be rotated (logMaxSize): %w", err)
		}
	}
	return nil
}

// writableDirectory returns an error unless files can be created in a directory, or the directory
// can be created.
func writableDirectory(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case os.IsNotExist(err) && dir != filepath.Dir(dir):
			continue
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case unix.Access(dir, unix.W_OK|unix.X_OK) != nil:
			return fmt.Errorf("the user may not create files in %s", dir)
		}
		return nil
	}
}
