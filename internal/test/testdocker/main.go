package testdocker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// runLabel is the label of all containers of tests. Its value is in the variable runVariable,
// so that programs started by a test use the same.
const (
	runLabel    = "agentenv-test-run"
	runVariable = "AGENTENV_TEST_RUN"
)

// If reportVariable names a folder, Main writes there how many containers the tests of the package
// in packageVariable have made: a line for each run of them.
const (
	reportVariable  = "AGENTENV_TEST_REPORT"
	packageVariable = "AGENTENV_TEST_PACKAGE"
)

// Labels returns the labels of this run of the tests.
func Labels() map[string]string { return map[string]string{runLabel: os.Getenv(runVariable)} }

// Main runs the tests of a package and returns the exit status. It fails if they leave a
// container, a volume or an image behind, or if no engine answers: then those fail that need it.
// Their records of sandboxes are in a folder of this run.
//
// The engine is the user's own, so tests must only touch what they have made. They may collect
// garbage, which every program that makes a sandbox does, but not without the grace period: that
// needs an engine of the test's own ([NewDaemon]), or a dry run.
func Main(m *testing.M) int {
	if os.Getenv(runVariable) != "" {
		return m.Run() // a program that a test started
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "around the tests:", err)
		return 1
	}
	return code
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background() // TestMain has none
	state, err := os.MkdirTemp("", "agentenv-state-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	err = errors.Join(os.Setenv("XDG_STATE_HOME", state), os.Setenv(runVariable, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())))
	if err != nil {
		return 0, err
	}
	eng, err := connect(ctx)
	if err != nil {
		return m.Run(), err // tests that need no engine tell more than none
	}
	defer func() { _ = eng.Close() }()
	networks, err := networksOfSandboxes(ctx, eng)
	if err != nil {
		return 0, err
	}
	report := count(ctx, eng)
	code = m.Run()
	err = leftovers(ctx, eng, networks)
	return code, errors.Join(err, report())
}

// count starts to count the containers of this run. The returned function reports their number.
func count(ctx context.Context, eng *client.Client) (report func() error) {
	folder := os.Getenv(reportVariable)
	if folder == "" {
		return func() error { return nil }
	}
	ctx, stop := context.WithCancel(ctx)
	made, ended := eng.Events(ctx, events.ListOptions{
		Since:   strconv.FormatInt(time.Now().Unix(), 10), // it may answer before it listens
		Filters: filters.NewArgs(filters.Arg("type", "container"), filters.Arg("event", "create"), filters.Arg("label", runLabel+"="+os.Getenv(runVariable))),
	})
	n, joined := 0, make(chan error)
	go func() {
		for {
			select {
			case <-made:
				n++
			case err := <-ended:
				joined <- err
				return
			}
		}
	}()
	return func() error {
		stop()
		if err := <-joined; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("count the containers: %w", err)
		}
		f, err := os.OpenFile(filepath.Join(folder, os.Getenv(packageVariable)+".containers"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, n)
		return errors.Join(err, f.Close())
	}
}
