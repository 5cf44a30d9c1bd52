package agenttest

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// Proxy is an HTTP proxy on the loopback interface that records the requested hosts and
// connects to none of them. StartProxy creates one.
type Proxy struct {
	// URL is for HTTP_PROXY and HTTPS_PROXY.
	URL string

	mu    sync.Mutex
	hosts []string
}

// StartProxy starts a proxy that ends with the test.
func StartProxy(t *testing.T) *Proxy {
	t.Helper()
	p := &Proxy{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.hosts = append(p.hosts, r.Host)
		p.mu.Unlock()
		http.Error(w, "this proxy reaches nothing", http.StatusBadGateway)
	}))
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Hosts returns the requested hosts with their ports, in order.
func (p *Proxy) Hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.hosts)
}
