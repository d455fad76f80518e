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

// listen listens on an address. Only this process's user can open a Unix socket.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // its sockets may lack the options that package conn sets
	path, ok := config.UnixSocket(address)
	if !ok {
		return lc.Listen(ctx, "tcp", address)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// Other users must never be able to open the socket.
	const others = 0o177
	before := syscall.Umask(others)
	defer syscall.Umask(before)
	return lc.Listen(ctx, "unix", path)
}

// removeStale removes a socket of a killed process. It does not remove other kinds of files.
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
		_ = c.Close() // no data was written
		return fmt.Errorf("another process listens on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
