package main

import (
	"context"
	"net"
)

// listen listens on an address.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // its sockets may lack the options that package conn sets
	return lc.Listen(ctx, "tcp", address)
}
