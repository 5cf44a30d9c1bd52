package engine_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

func TestWhatListensAndNeverAnswersIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = engine.AskPatiently(t.Context(), "unix://"+l.Addr().String(), 10*time.Millisecond)
	if !errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") || strings.Contains(err.Error(), "http:") {
		t.Errorf("error %v", err)
	}
}
