package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// profiled writes a CPU profile of the proxy with TLS during a scenario, if profiles are wanted.
func (b *bench) profiled(ctx context.Context, name string, do func(context.Context) error) error {
	if b.profiles == "" {
		return do(ctx)
	}
	taking, enough := context.WithCancel(ctx)
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for i := 0; taking.Err() == nil; i++ {
			profile, err := b.adminGet(taking, b.secure.proxy, "/debug/pprof/profile?seconds=5")
			if err == nil {
				err = os.WriteFile(filepath.Join(b.profiles, fmt.Sprintf("%s-%02d.pprof", name, i)), profile, 0o644)
			}
			if err != nil {
				return
			}
		}
	}()
	err := do(ctx)
	enough()
	<-taken
	return err
}

// heapProfile writes a proxy's heap profile as text with the runtime's own figures, if profiles are
// wanted.
func (b *bench) heapProfile(ctx context.Context, s *server, name string) error {
	if b.profiles == "" || s.name != ours {
		return nil
	}
	for suffix, query := range map[string]string{".heap": "gc=1", ".memstats": "debug=1"} {
		profile, err := b.adminGet(ctx, s, "/debug/pprof/heap?"+query)
		if err == nil {
			err = os.WriteFile(filepath.Join(b.profiles, strings.ReplaceAll(name, "/", " ")+suffix), profile, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
