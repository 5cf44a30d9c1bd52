package docker_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
)

// toEngine makes a proxy forward requests to the real engine. Unlike testdocker.Proxy, which
// forwards bytes, it can change requests and answers.
func toEngine(t *testing.T, proxy *httputil.ReverseProxy) *httputil.ReverseProxy {
	t.Helper()
	return toEngineAt(t, testdocker.Engine(t).DaemonHost(), proxy)
}

// toEngineAt is toEngine for an engine at a unix:// address.
func toEngineAt(t *testing.T, host string, proxy *httputil.ReverseProxy) *httputil.ReverseProxy {
	t.Helper()
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		t.Fatalf("these tests need an engine behind a Unix socket, not %s", socket)
	}
	proxy.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	rewrite := proxy.Rewrite
	proxy.Rewrite = func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
		if rewrite != nil {
			rewrite(r)
		}
	}
	return proxy
}

// standIn serves a stand-in for the engine until the test ends, and returns its address.
func standIn(t *testing.T, handler http.Handler) (host string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ae") //nolint:usetesting // TempDir's paths hold the test's name, and those of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return "unix://" + l.Addr().String()
}

// setBody replaces the body of an answer.
func setBody(r *http.Response, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
}
