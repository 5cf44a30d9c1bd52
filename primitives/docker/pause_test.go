package docker_test

import (
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
)

// runc sometimes gives up on a control group of version 1 whose processes fork while it freezes.
// Here the engine reports that twice.
func TestABusySandboxCanBePaused(t *testing.T) {
	t.Parallel()
	proxy := toEngine(t, &httputil.ReverseProxy{})
	var refused atomic.Int32
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host = standIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pause") && refused.Add(1) <= 2 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(`{"message":"Cannot pause container: OCI runtime pause failed: unable to freeze: unknown"}`))
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	s := open(t, cfg)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := refused.Load(); got != 3 {
		t.Errorf("the engine was asked %d times", got)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}
