package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// profiled takes a CPU profile of the proxy by TLS while a scenario runs, if profiles are wanted.
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
