package upstream

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// proofAge is the age at which a proof that this machine's clock is right is renewed.
const proofAge = 10 * time.Second

// proveClock sends a probe if there are feeds of rows and no response has proved this machine's
// clock right for a while. It returns when the life of the feeds ends.
func proveClock(all *feedSet) {
	upstream, log := all.shared.Client, all.shared.Log
	for wrong := false; client.Sleep(all.ctx, proofAge); {
		for _, f := range all.Started() {
			if f.Feed.Encoding != object.Table {
				continue
			}
			if !upstream.Clock.Proved(proofAge) {
				ctx, cancel := context.WithTimeout(all.ctx, client.ProbeTimeout)
				_, err := upstream.Probe(ctx, "probe", f.Cache().Resource())
				cancel()
				log.Debug("compared the clock with upstream's", zap.Error(err))
			}
			_, right := upstream.Clock.Now()
			switch {
			case right && wrong:
				log.Info("this machine's clock agrees with upstream's again")
			case !right && !wrong:
				log.Warn("this machine's clock may differ from upstream's; upstream answers Tables",
					zap.Duration("allowed", object.ClockSkew))
			}
			wrong = !right
			break
		}
	}
}
