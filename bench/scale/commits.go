package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// commits has the times at which etcd tells of revisions, soon after their commit.
type commits struct {
	mu struct {
		sync.Mutex
		at map[string]time.Time // by revision
	}
	etcd    *clientv3.Client
	watches sync.WaitGroup
}

// followed are the parts of etcd whose commits are timed. Leases are not watched by the crowd.
var followed = []string{"/registry/pods/", "/registry/minions/", "/registry/endpointslices/"}

// newCommits follows etcd until ctx ends.
func newCommits(ctx context.Context, url string) (*commits, error) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Context: ctx})
	if err != nil {
		return nil, err
	}
	c := &commits{etcd: etcd}
	c.mu.at = map[string]time.Time{}
	for _, prefix := range followed {
		c.watches.Go(func() { c.follow(ctx, prefix) })
	}
	return c, nil
}

func (c *commits) follow(ctx context.Context, prefix string) {
	for got := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix()) {
		now := time.Now()
		c.mu.Lock()
		for _, e := range got.Events {
			c.mu.at[strconv.FormatInt(e.Kv.ModRevision, 10)] = now
		}
		c.mu.Unlock()
	}
}

// latencies returns the time from commit to reading of each event, in ms.
func (c *commits) latencies(reads []read) (all []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range reads {
		if at, ok := c.mu.at[r.revision]; ok {
			all = append(all, max(0, ms(r.at.Sub(at))))
		}
	}
	return all
}

func (c *commits) close() {
	_ = c.etcd.Close()
	c.watches.Wait()
}
