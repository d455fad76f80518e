package upstream

import (
	"errors"
	"slices"

	"golang.org/x/time/rate"
)

// errReconfigured says that a feed ended as its resource is to be cached in another way.
var errReconfigured = errors.New("the resource is cached in another way now")

// SetOptions changes them while feeds run, all but SelfCheck. Feeds of resources that are excluded from now on
// end, and so do their watches; those of a resource that may be an aggregated one from now on, or may not, begin
// anew. All others go on.
func (fs *Feeds) SetOptions(options Options) {
	options.SelfCheck = fs.options.Load().SelfCheck
	fs.mu.Lock()
	fs.options.Store(&options)
	fs.setBudget(options.MaxProbes)
	clear(fs.mu.refused) // for reasons that may be none any more
	for _, f := range fs.mu.feeds {
		fs.running.Go(func() { fs.reconfigure(f) })
	}
	fs.mu.Unlock()
}

// setBudget bounds what all feeds together ask for consistent reads. What was not asked in the last
// second is saved up, so few readers wait for nobody.
func (fs *Feeds) setBudget(perSecond int) {
	if perSecond <= 0 {
		fs.probes.SetLimit(rate.Inf)
		return
	}
	fs.probes.SetBurst(max(perSecond, 1+smallObjects/objectsPerProbe))
	fs.probes.SetLimit(rate.Limit(perSecond))
}

// reconfigure makes a feed what the options of now say, once it has something to abandon. Each feed is when it has
// started, too: they may have changed since it was made.
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
