package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// AddressError is the error for a host whose address no sandbox may reach.
type AddressError struct {
	Address netip.Addr
	Kind    string // the kind of address, as text for users
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is %s, which no sandbox may reach through the gateway", e.Address, e.Kind)
}

// special are the ranges outside the public internet, and those that may lead out of it. All
// public IPv6 addresses are in 2000::/3.
var special = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this machine"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "a private address of a provider"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a service of a cloud's machines"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address, as metadata services have it"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a reserved address"},
	{netip.MustParsePrefix("192.0.2.0/24"), "a reserved address"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a reserved address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("198.18.0.0/15"), "a reserved address"},
	{netip.MustParsePrefix("198.51.100.0/24"), "a reserved address"},
	{netip.MustParsePrefix("203.0.113.0/24"), "a reserved address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
	{netip.MustParsePrefix("::/128"), "this machine"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("2001::/23"), "a reserved address"}, // Teredo, which embeds IPv4
	{netip.MustParsePrefix("2001:db8::/32"), "a reserved address"},
	{netip.MustParsePrefix("2002::/16"), "a reserved address"}, // 6to4, likewise
	{netip.MustParsePrefix("3fff::/20"), "a reserved address"},
}

var public6 = netip.MustParsePrefix("2000::/3")

// CheckAddress returns an [*AddressError] for an address outside the public internet.
func CheckAddress(address netip.Addr) error {
	address = address.Unmap().WithZone("")
	for _, s := range special {
		if s.prefix.Contains(address) {
			return &AddressError{address, s.kind}
		}
	}
	if !address.Is4() && !public6.Contains(address) {
		return &AddressError{address, "a reserved address"}
	}
	return nil
}

// checkOwn returns an [*AddressError] for an address of this machine. Its services may trust
// local connections.
func checkOwn(address netip.Addr) error {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("addresses of this machine: %w", err)
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok {
			if mine, ok := netip.AddrFromSlice(n.IP); ok && mine.Unmap() == address {
				return &AddressError{address, "an address of this machine"}
			}
		}
	}
	return nil
}

const dialTimeout = 10 * time.Second

// Dialer connects to hosts of the public internet.
type Dialer struct {
	// Resolver resolves names. Nil means this machine's resolver.
	Resolver *net.Resolver
}

// Dial connects to a target. It checks each address when dialling it, so that a second lookup
// cannot return another address. An address that no sandbox may reach is an [*AddressError].
func (d Dialer) Dial(ctx context.Context, t Target) (net.Conn, error) {
	if address, ok := testHosts.Load(t); ok {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address.(string))
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout, Resolver: d.Resolver, Control: control}).DialContext(ctx, "tcp", t.String())
	if failed, ok := errors.AsType[*AddressError](err); ok {
		return nil, failed
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Err != nil {
		return nil, failed.Err // the rest of the error repeats the target
	}
	return conn, err
}

// control checks an address before it is dialled.
func control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if err := CheckAddress(at.Addr()); err != nil {
		return err
	}
	return checkOwn(at.Addr().Unmap())
}

var testHosts sync.Map

// AddTestHost is for tests of this module, whose servers listen on loopback, which Dial
// refuses. Until remove is called, Dial connects the target to address without a check. The
// host must be below ".test", so that it cannot be a real host.
func AddTestHost(t Target, address string) (remove func()) {
	if !strings.HasSuffix(t.Host, ".test") {
		panic("egress: " + t.Host + " is no host of a test")
	}
	testHosts.Store(t, address)
	return func() { testHosts.Delete(t) }
}
