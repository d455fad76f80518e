package proxy

import (
	"bufio"
	"io"
	"testing"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// This starts fasthttp's clock, which never ends, outside all bubbles.
	_ = new(fasthttp.Response).Write(bufio.NewWriter(io.Discard))
	goleak.VerifyTestMain(m,
		// fasthttp's clock never ends. Its goroutine pool ends after a sleep.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}
