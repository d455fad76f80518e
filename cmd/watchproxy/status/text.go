package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/util/duration"
)

func (s *Status) writeTable(to io.Writer) error {
	if len(s.Feeds) == 0 {
		_, err := fmt.Fprintln(to, "no caches: the first request for a resource starts one")
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tENCODING\tSTATE\tOBJECTS\tSIZE\tLOG\tRESOURCEVERSION\tAGE\t"+
		"WATCHES\tEVENTS\tDELIVERED")
	for _, f := range s.Feeds {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%s\t%d\t%d\t%d\n",
			f.name(), f.Encoding, f.state(), f.Objects, humanize.IBytes(uint64(f.ObjectBytes)),
			f.LogEvents, f.ResourceVersion, age(f.LastSignSeconds), f.Watches, f.Events,
			f.Delivered)
	}
	return w.Flush()
}

func (f *feedStatus) name() string {
	name := strings.TrimSuffix(f.Resource+"."+f.Version+"."+f.Group, ".")
	if f.Scope != "" {
		name += " in " + f.Scope
	}
	return name
}

func (f *feedStatus) state() string {
	switch {
	case f.Failing:
		return "lost " + age(f.LostSeconds)
	case !f.Synced:
		return "syncing"
	}
	return "synced"
}

func age(seconds float64) string {
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
}
