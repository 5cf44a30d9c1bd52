package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// serveNames starts a DNS server that answers queries for any name with the addresses in turn.
// It returns a resolver and a counter of IPv4 queries.
func serveNames(t *testing.T, addresses ...string) (*net.Resolver, *atomic.Int64) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := new(atomic.Int64)
	done := make(chan struct{})
	t.Cleanup(func() { _ = server.Close(); <-done })
	go func() {
		defer close(done)
		for buffer := make([]byte, 1500); ; {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) == 0 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				address := netip.MustParseAddr(addresses[min(int(asked.Add(1)), len(addresses))-1])
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: address.As4()}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}, asked
}

// TestANameThatMeansAnotherAddressMeanwhile checks that Dial checks the address that it dials.
// It looks up a name once for each connection, so that there is no second answer.
func TestANameThatMeansAnotherAddressMeanwhile(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_ = conn.Close()
			t.Error("loopback was reached")
		}
	}()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	names, asked := serveNames(t, "169.254.169.254", "127.0.0.1")
	for i, want := range []string{"169.254.169.254", "127.0.0.1", "127.0.0.1"} {
		conn, err := Dialer{names}.Dial(t.Context(), Target{"rebind.example.com", port})
		var refused *AddressError
		if !errors.As(err, &refused) || refused.Address.String() != want {
			t.Errorf("got %v, %v", conn, err)
		}
		if n := asked.Load(); n != int64(i+1) {
			t.Errorf("connection %d: %d lookups", i+1, n)
		}
	}
}

func TestTheAddressesOfThisMachineAreRefused(t *testing.T) {
	t.Parallel()
	own, err := net.InterfaceAddrs()
	if err != nil || len(own) == 0 {
		t.Fatal(own, err)
	}
	for _, a := range own {
		if address, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); !ok || checkOwn(address.Unmap()) == nil {
			t.Errorf("%v is not refused", a)
		}
	}
	if err := checkOwn(netip.MustParseAddr("93.184.216.34")); err != nil {
		t.Error(err)
	}
}
