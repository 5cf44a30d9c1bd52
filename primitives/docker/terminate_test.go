package docker

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/client"
)

// TestARemovalThatTheEngineForgetsToTellOf covers engines that do not answer a client that waits
// for a removal at the moment it is complete.
func TestARemovalThatTheEngineForgetsToTellOf(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/wait"):
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"message": "removal is already in progress"}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"message": "No such container"}`))
		}
	}))
	t.Cleanup(server.Close)
	eng, err := client.NewClientWithOpts(client.WithHost("tcp://"+server.Listener.Addr().String()), client.WithVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	removed := make(chan error, 1)
	go func() { removed <- removeContainer(ctx, eng, "box") }()
	select {
	case err := <-removed:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Fatal("it waits for an answer that never comes")
	}
}
