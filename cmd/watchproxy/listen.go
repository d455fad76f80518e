package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/watchproxy/watchproxy/config"
)

// listen listens on an address, or on a Unix socket that is open to this process's
// user alone.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	path, ok := config.UnixSocket(address)
	if !ok {
		return lc.Listen(ctx, "tcp", address)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// The socket must not be open to other users even for a moment.
	const others = 0o177
	before := syscall.Umask(others)
	defer syscall.Umask(before)
	return lc.Listen(ctx, "unix", path)
}

// removeStale removes a socket that a killed process left behind. It removes no other kind of file.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s exists and is no socket", path)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close() // nothing was written
		return fmt.Errorf("another process listens on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
