package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// audit reads the apiserver's audit log: what it was asked for, by whom.
type audit struct {
	file *os.File
	rest *bufio.Reader
	// open are the watches of some resources that have begun and not ended, by id.
	open    map[string]string
	earlier asked
}

func openAudit(path string) (*audit, error) {
	file, err := os.Open(path)
	return &audit{file: file, rest: bufio.NewReader(file), open: map[string]string{}}, err
}

// asked is what the apiserver was asked for of the followed resources.
type asked struct {
	probes    int // lists and watches that match nothing
	lists     int // with objects, be it their metadata
	syncs     int // watches that begin with the state
	watches   int // others
	forwarded int // requests of informers, of any kind
}

// since tells what was asked since the last time.
func (a *audit) since() (sum asked, err error) {
	sum, a.earlier = a.earlier, asked{}
	for {
		line, err := a.rest.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return sum, nil
		}
		if err != nil {
			return sum, fmt.Errorf("audit log ends with %q: %w", line, err)
		}
		a.count(&sum, gjson.ParseBytes(line))
	}
}

// ended notes that the apiserver has ended, with or without saying of each watch that it has.
func (a *audit) ended() (err error) {
	a.earlier, err = a.since()
	clear(a.open)
	return err
}

func (a *audit) count(sum *asked, e gjson.Result) {
	of := schema.GroupResource{Group: e.Get("objectRef.apiGroup").Str, Resource: e.Get("objectRef.resource").Str}
	ours := slices.ContainsFunc(followed, func(gvr schema.GroupVersionResource) bool { return gvr.GroupResource() == of })
	agent, uri := e.Get("userAgent").Str, e.Get("requestURI").Str
	if !ours || agent != feedAgent && agent != fleetAgent {
		return
	}
	watch := e.Get("verb").Str == "watch"
	if watch && e.Get("stage").Str == "ResponseComplete" {
		delete(a.open, e.Get("auditID").Str)
		return
	}
	if watch {
		a.open[e.Get("auditID").Str] = of.String()
	}
	switch {
	case agent == fleetAgent:
		sum.forwarded++
	case strings.Contains(uri, "/namespaces/watchproxy.none/"):
		sum.probes++
	case watch && strings.Contains(uri, "sendInitialEvents=true"):
		sum.syncs++
	case watch:
		sum.watches++
	case e.Get("verb").Str == "list":
		sum.lists++
	}
}

// feedAgent is what the proxy's feeds call themselves.
const feedAgent = "watchproxy"
