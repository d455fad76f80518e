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

// proveClock compares this machine's clock with upstream's while there are feeds of rows. Any
// response of upstream compares the clocks. If none has come for a while, or this machine's time
// was changed, proveClock sends a probe.
func (fs *Feeds) proveClock() {
	for wrong := false; client.Sleep(fs.ctx, proofAge); {
		for _, f := range fs.list() {
			if f.Feed.Encoding != object.Table {
				continue
			}
			if !fs.shared.Client.Clock.Proved(proofAge) {
				ctx, cancel := context.WithTimeout(fs.ctx, client.ProbeTimeout)
				_, err := fs.shared.Client.Probe(ctx, "probe", f.Cache().Resource())
				cancel()
				fs.shared.Log.Debug("compared the clock with upstream's", zap.Error(err))
			}
			_, right := fs.shared.Client.Clock.Now()
			switch {
			case right && wrong:
				fs.shared.Log.Info("this machine's clock agrees with upstream's again")
			case !right && !wrong:
				fs.shared.Log.Warn("this machine's clock may differ from upstream's; upstream answers Tables", zap.Duration("allowed", object.ClockSkew))
			}
			wrong = !right
			break
		}
	}
}
