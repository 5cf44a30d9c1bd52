package permission

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// hostOf returns the host of a URL of the web. ok is false if there is none, or programs could
// disagree on it.
func hostOf(text string) (host string, ok bool) {
	if strings.ContainsAny(text, "\\ \t\r\n") {
		return "", false
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", false
	}
	host = canonicalHost(strings.TrimSuffix(strings.ToLower(u.Hostname()), "."))
	return host, hostName.MatchString(host) && !strings.HasPrefix(host, "*")
}

// canonicalHost returns an address in the form that rules have: programs take 0x7f.1, 2130706433 and [::ffff:127.0.0.1] for
// 127.0.0.1. It returns names as they are.
func canonicalHost(host string) string {
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		if addr = addr.Unmap(); addr.Is4() {
			return addr.String()
		}
		return "[" + addr.String() + "]"
	}
	parts := strings.Split(host, ".")
	var all uint64
	for i, part := range parts {
		bits := 8
		if i == len(parts)-1 { // the last one is all bytes that are left
			bits = 8 * (5 - len(parts))
		}
		n, err := strconv.ParseUint(part, 0, 32)
		if err != nil || len(parts) > 4 || n>>bits != 0 {
			return host
		}
		all = all<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(all >> 24), byte(all >> 16), byte(all >> 8), byte(all)}).String()
}
