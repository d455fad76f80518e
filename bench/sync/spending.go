package main

import (
	"context"
	"errors"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// spending counts the servers' requests and processor time between begin and end.
type spending struct {
	api              *cluster.APIServer
	proxy            *cluster.Proxy
	counters         counters
	proxyCPU, apiCPU time.Duration
}

func (s *spending) begin(ctx context.Context, api *cluster.APIServer, proxy *cluster.Proxy) error {
	s.api, s.proxy = api, proxy
	return s.read(ctx)
}

func (s *spending) end(ctx context.Context) error {
	before := *s
	err := s.read(ctx)
	s.counters = s.counters.since(before.counters)
	s.proxyCPU -= before.proxyCPU
	s.apiCPU -= before.apiCPU
	return err
}

// read reads the processor time first, because reading the proxy's counters takes processor time.
func (s *spending) read(ctx context.Context) error {
	var errs [3]error
	s.proxyCPU, errs[0] = s.proxy.CPU()
	s.apiCPU, errs[1] = s.api.CPU()
	s.counters, errs[2] = readCounters(ctx, s.proxy)
	return errors.Join(errs[:]...)
}
