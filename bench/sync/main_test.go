package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each end of a proxy takes a second longer
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	code := m.Run()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if code == 0 {
		// klog, which client-go brings along, flushes for as long as the process lives.
		if err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
			fmt.Fprintln(os.Stderr, errors.Join(errors.New("goroutines were left"), err))
			code = 1
		}
	}
	os.Exit(code)
}
