package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdQuota is the size, in bytes, above which etcd refuses writes. It is the largest size that
// etcd recommends.
const etcdQuota = 8 << 30

// etcd is a cluster of one member, reachable on loopback only. The zero value means that there is
// none.
type etcd struct{ *embed.Etcd }

// startEtcd returns when the member is ready to answer clients.
func startEtcd(ctx context.Context, dir *stateDir) (etcd, error) {
	client := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	// A cluster of one member has no peers. It needs a peer address, but nothing listens on this
	// address or connects to it.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}

	cfg := embed.NewConfig()
	cfg.Dir = dir.file("etcd")
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.QuotaBackendBytes = etcdQuota
	// Even if the process is killed, the kernel still writes the data. They need not survive a
	// crash of the machine, because this is only for tests. fsync would slow down writes and make
	// their timing depend on the disk.
	cfg.UnsafeNoFsync = true
	cfg.LogOutputs = []string{embed.StdErrLogOutput}
	cfg.LogLevel = "panic" // an orderly stop logs errors; real errors show in Err or in the apiserver
	cfg.EnableGRPCGateway = false

	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return etcd{}, fmt.Errorf("cannot start etcd in %s: %w", cfg.Dir, err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return etcd{server}, nil
	case <-server.Server.StopNotify():
		server.Close()
		return etcd{}, fmt.Errorf("etcd in %s stopped before it was ready", cfg.Dir)
	case <-ctx.Done():
		server.Close()
		return etcd{}, context.Cause(ctx)
	}
}

// failed returns a channel with the reason why etcd stopped by itself.
func (e etcd) failed() <-chan error {
	if e.Etcd == nil {
		return nil
	}
	return e.Err()
}

func (e etcd) close() {
	if e.Etcd != nil {
		e.Close()
	}
}

// endpoint returns the URL for clients.
func (e etcd) endpoint() string { return "http://" + e.Clients[0].Addr().String() }
