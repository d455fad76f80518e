package main

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A token that the kubelet has replaced still counts as the proxy's own for a while, because clients
// read the file later.
func TestReplacedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &tokenFile{path: filepath.Join(t.TempDir(), "token")}
		write := func(token string) {
			if err := os.WriteFile(f.path, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(want map[string]bool) {
			t.Helper()
			for token, is := range want {
				if f.is(token) != is {
					t.Errorf("%q counts as the proxy's own: %v", token, !is)
				}
			}
		}
		expect(map[string]bool{"": false, "first": false})
		time.Sleep(2 * tokenAge)
		write("first")
		expect(map[string]bool{"first": true, "second": false, "": false, "firs": false})
		write("second")
		time.Sleep(2 * tokenAge)
		expect(map[string]bool{"first": true, "second": true, "third": false, "": false})
		time.Sleep(tokenOverlap)
		expect(map[string]bool{"first": false, "second": true})
		write("third") // nobody asks for a while, so the time of the replacement is not known
		time.Sleep(time.Hour)
		expect(map[string]bool{"second": false})
		expect(map[string]bool{"third": true})
		time.Sleep(2 * tokenAge)
		write("fourth") // a client may know it first
		expect(map[string]bool{"fourth": true, "third": true})
		if err := os.Remove(f.path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		expect(map[string]bool{"first": false, "third": false, "fourth": true})
	})
}
