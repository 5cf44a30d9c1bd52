package modal_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// realAccount makes TestContract run at Modal itself, with the account of
// MODAL_TOKEN_ID and MODAL_TOKEN_SECRET:
//
//	go test -timeout 60m ./primitives/modal -run TestContract -modal
//
// It creates some hundred sandboxes with Modal's default resources, a few at a time. Each lives
// for seconds to minutes; together they cost less than a dollar. The test terminates all of
// them, and Modal ends each after five minutes without a client. The test removes its
// snapshots; the image with the runner stays, as it does for every user. "envctl gc --sandbox
// modal" ends the orphans of a killed run. All other tests need the server on the loopback
// interface, which injects faults.
var realAccount = flag.Bool("modal", os.Getenv("AGENTENV_TEST_MODAL") == "1", "run the contract with a real account of Modal")

func TestMain(m *testing.M) {
	if config := os.Getenv(serverVariable); config != "" {
		if err := serve(config, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if program := os.Getenv(crashVariable); program != "" {
		_, err := modal.New(context.Background(), crashConfig(program))
		fmt.Fprintln(os.Stderr, "it was to be killed before:", err)
		os.Exit(1)
	}
	testmodal.Main(m)
}

// newServer starts a server and points this test's environment at it.
func newServer(t testing.TB) *testmodal.Server {
	t.Helper()
	s := testmodal.New(t)
	s.Setenv(t)
	return s
}

// runner returns the path of the guest program, built for Modal's machines or for this one.
func runner(t testing.TB) string {
	t.Helper()
	cfg := bundle.Config{OS: "linux"}
	if *realAccount {
		cfg.Arch = "amd64"
	}
	file, err := bundle.Path(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// config returns the configuration that all tests have in common.
func config(t testing.TB) modal.Config {
	t.Helper()
	return modal.Config{Spec: primitives.Spec{Image: "debian:12", Grace: 300 * time.Second, Session: "a test"}, Provider: modal.Provider{Timeout: 3600 * time.Second}, Runner: runner(t)}
}

// open creates a sandbox that ends with the test.
func open(t testing.TB, cfg modal.Config) *guest.Sandbox {
	t.Helper()
	s, err := modal.New(t.Context(), cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if _, err := s.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Terminate: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// run runs a shell script and returns its standard output.
func run(t *testing.T, s primitives.EnvironmentPrimitive, script string) string {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", script}}, primitives.RunOptions{})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if res.Status.Code != 0 {
		t.Fatalf("%s: %+v: %s", script, res.Status, res.Stderr)
	}
	return string(res.Stdout)
}

// signalGuests sends a signal to the guests in a sandbox, from outside.
func signalGuests(ctx context.Context, id, signal string) error {
	mc, err := sdk.NewClient()
	if err != nil {
		return err
	}
	defer mc.Close()
	box, err := mc.Sandboxes.FromID(ctx, id, nil)
	if err != nil {
		return err
	}
	defer func() { _ = box.Detach() }()
	p, err := box.Exec(ctx, []string{"sh", "-c", `for p in /proc/[0-9]*; do
		case $(tr '\0' ' ' <$p/cmdline 2>/dev/null) in
		/agentenv/runner/envrunner\ guest*) kill -$0 ${p#/proc/}
			# A process stops when the thread that has got the signal runs, and goes on until then.
			while [ $0 = STOP ] && grep -qs '^State:.[^T]' $p/task/*/status; do sleep 0.01; done ;;
		esac
	done`, signal}, &sdk.SandboxExecParams{Stdout: sdk.Ignore, Stderr: sdk.Ignore})
	if err != nil {
		return err
	}
	_, err = p.Wait(ctx, nil)
	return err
}
