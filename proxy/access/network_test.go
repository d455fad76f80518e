package access

import "testing"

// Strangers share by IPv4 address, and by the network of an IPv6 address.
func TestNetwork(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.7:1234":            "10.0.0.7",
		"[::ffff:10.0.0.7]:1":      "10.0.0.7",
		"[2001:db8:1:2:3:4:5:6]:9": "2001:db8:1:2::/64",
		"[2001:db8:1:2::1]:10":     "2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:10":     "2001:db8:1:3::/64",
		"[fe80::1%eth0]:1":         "fe80::/64",
		"[::1]:8":                  "::/64",
		"@":                        "@",
		"":                         "",
	} {
		if got := Network(remote); got != want {
			t.Errorf("%q: %q, want %q", remote, got, want)
		}
	}
}
