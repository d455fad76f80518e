package upstream

import (
	"errors"
	"slices"

	"golang.org/x/time/rate"
)

// errReconfigured ends a feed whose resource has new options.
var errReconfigured = errors.New("the resource is cached in another way now")

// SetOptions changes all options but SelfCheck while feeds run. Feeds of newly excluded resources
// end, and their watches with them. Feeds whose Aggregated option changed start anew. All others
// go on.
func (fs *Feeds) SetOptions(options Options) {
	options.SelfCheck = fs.options.Load().SelfCheck
	fs.mu.Lock()
	fs.options.Store(&options)
	fs.setBudget(options.MaxProbes)
	clear(fs.mu.refused) // their reasons may no longer hold
	for _, f := range fs.mu.feeds {
		fs.running.Go(func() { fs.reconfigure(f) })
	}
	fs.mu.Unlock()
}

// setBudget bounds the probes of all feeds for consistent reads. One second's unused budget is
// saved, so few readers never wait.
func (fs *Feeds) setBudget(perSecond int) {
	if perSecond <= 0 {
		fs.probes.SetLimit(rate.Inf)
		return
	}
	fs.probes.SetBurst(max(perSecond, 1+smallObjects/objectsPerProbe))
	fs.probes.SetLimit(rate.Limit(perSecond))
}

// reconfigure applies the current options to a started feed. It is also called when a feed has
// started: the options may have changed meanwhile.
func (fs *Feeds) reconfigure(f *Feed) {
	select {
	case <-f.started:
	case <-fs.ctx.Done():
		return
	}
	if f.cache == nil {
		return
	}
	options := fs.options.Load()
	of := options.Resources[f.gvr.GroupResource()]
	switch {
	case options.excludes(f.key()):
		fs.giveUp(f, ErrExcluded, 0)
		<-f.done
		fs.forgetSaved(f.key())
	case of.Aggregated != f.options.Load().Aggregated:
		fs.giveUp(f, errReconfigured, 0)
	default:
		f.setOptions(of)
		fs.shed(f)
	}
}

func (o *Options) excludes(key feedKey) bool {
	return slices.Contains(o.Excluded, key.gvr.GroupResource())
}

func (f *Feed) setOptions(o ResourceOptions) { f.options.Store(&o) }
