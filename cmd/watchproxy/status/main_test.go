package status

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// client-go's cache of transports keeps idle connections.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("internal/poll.runtime_pollWait"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}
