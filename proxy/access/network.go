package access

import "net/netip"

// networkBits is the length of an IPv6 network. A client with one address of such a network usually has
// all of them.
const networkBits = 64

// Network returns what clients that are not known yet share by: the IPv4 address, or the /64 of the IPv6
// address, of a remote address with a port. Other addresses are returned unchanged.
func Network(remote string) string {
	with, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	ip := with.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, networkBits).Masked().String()
}
