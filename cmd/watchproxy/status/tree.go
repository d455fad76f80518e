package status

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
)

// tier is a proxy in a tree of proxies.
type tier struct {
	admin string
	*Status
	err   error
	below []*tier
}

// namesOf returns the names in the certificate that a listener serves now.
func namesOf(serving *tls.Config) (names []string) {
	if serving == nil || serving.GetConfigForClient == nil {
		return nil
	}
	now, err := serving.GetConfigForClient(&tls.ClientHelloInfo{ServerName: "localhost"})
	if err != nil || len(now.Certificates) == 0 {
		return nil
	}
	leaf, err := x509.ParseCertificate(now.Certificates[0].Certificate[0])
	if err != nil {
		return nil
	}
	names = slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// serves reports whether a proxy may be the upstream at an address: the proxy listens there, or its
// certificate has the name of a Service at the address. A loopback address is the same only with the
// same port.
func (s *Status) serves(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return false
	}
	own, err := url.Parse(s.Listen)
	if err == nil && own.Host == u.Host {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && !ip.IsLoopback() && slices.Contains(s.Names, u.Hostname())
}

// tree returns the proxies by the addresses of the upstreams that are not among them. A proxy whose
// upstream may be any of several replicas is below the first one.
func tree(all []*tier) map[string][]*tier {
	roots := map[string][]*tier{}
	for _, t := range all {
		if t.err != nil {
			continue
		}
		at := slices.IndexFunc(all, func(o *tier) bool { return o != t && o.err == nil && o.serves(t.Upstream) && !o.serves(o.Upstream) })
		if at < 0 || all[at].Upstream == t.Upstream { // replicas do not stand behind one another
			roots[t.Upstream] = append(roots[t.Upstream], t)
		} else {
			all[at].below = append(all[at].below, t)
		}
	}
	return roots
}

// printTree fetches the statuses of proxies and prints them below their upstreams.
func printTree(ctx context.Context, admins []string, stdout, stderr io.Writer) error {
	const atOnce = 32
	all := make([]*tier, len(admins))
	var fetching errgroup.Group
	fetching.SetLimit(atOnce)
	for i, admin := range admins {
		fetching.Go(func() error {
			s, err := fetch(ctx, admin)
			all[i] = &tier{admin: admin, Status: s, err: err}
			return nil
		})
	}
	_ = fetching.Wait() // each tier has its error
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROXY\tVERSION\tFEEDS\tOBJECTS\tWATCHES\tLAG P50\tLAG P99\tSTATE")
	roots := tree(all)
	for _, upstream := range slices.Sorted(maps.Keys(roots)) {
		fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\n", upstream)
		writeBelow(w, roots[upstream], "")
	}
	failed := false
	for _, t := range all {
		if t.err != nil {
			failed = true
			fmt.Fprintln(stderr, "watchproxy:", t.err)
		}
	}
	if err := w.Flush(); err != nil || !failed {
		return err
	}
	return command.ErrReported
}

func writeBelow(w io.Writer, tiers []*tier, indent string) {
	for i, t := range tiers {
		branch, further := "├─ ", "│  "
		if i == len(tiers)-1 {
			branch, further = "└─ ", "   "
		}
		objects := 0
		for _, f := range t.Feeds {
			objects += f.Objects
		}
		lag := [2]string{"-", "-"}
		for i, share := range []float64{0.5, 0.99} {
			if took, ok := t.Latency.Delivery.quantile(share); ok {
				lag[i] = seconds(took)
			}
		}
		state := "healthy"
		if why := t.unhealthy(); len(why) > 0 {
			state = strings.Join(why, "; ")
		}
		fmt.Fprintf(w, "%s%s%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", indent, branch, t.admin, t.Version, len(t.Feeds), count(objects), count(t.Watches), lag[0], lag[1], state)
		writeBelow(w, t.below, indent+further)
	}
}

// adminURLs returns the URLs of several admin addresses, each once.
func adminURLs(admins []string) (urls []string, err error) {
	for _, admin := range admins {
		base, wrong := adminURL(admin)
		if err = errors.Join(err, wrong); !slices.Contains(urls, base) {
			urls = append(urls, base)
		}
	}
	return urls, err
}
