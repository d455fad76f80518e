//go:build !linux

package conn

import (
	"errors"
	"net"
)

// refuseNew would make a listening socket ignore new clients.
func refuseNew(int) error { return errors.ErrUnsupported }

// acceptNow would accept a connection without waiting.
func acceptNow(int) (net.Conn, error) { return nil, errors.ErrUnsupported }
