package local_test

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newSandbox makes a sandbox that is terminated when the test is over.
func newSandbox(t testing.TB, cfg local.Config) *local.Sandbox {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	s, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if _, err := s.Terminate(ctx); err != nil {
			t.Errorf("terminate: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := os.Stat(s.Paths().Session); !cfg.Keep && !os.IsNotExist(err) {
			t.Errorf("the session folder is still there: %v", err)
		}
	})
	return s
}

func shell(script string) primitives.Command {
	return primitives.Command{Args: []string{"/bin/sh", "-c", script}}
}

func run(t testing.TB, s *local.Sandbox, cmd primitives.Command) primitives.RunResult {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, cmd, primitives.RunOptions{})
	if err != nil {
		t.Fatalf("run %q: %v", cmd.Args, err)
	}
	return res
}

func TestRunReturnsWhatTheCommandPrintedAndHowItEnded(t *testing.T) {
	s := newSandbox(t, local.Config{})
	for _, script := range []string{"", "sleep 0.05;"} { // within and after the burst
		res := run(t, s, shell(script+"echo out; echo err >&2; exit 3"))
		if string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
			t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
		}
		if want := (primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited}); res.Status != want {
			t.Errorf("status %+v, want %+v", res.Status, want)
		}
	}
}
