// Package testdocker gives tests a Docker engine, and images that need no registry.
package testdocker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// instruction is the advice when a prerequisite is missing: tests with Docker are never
// skipped.
const instruction = "run the set-up first, which installs and starts what the tests need: go tool -modfile=tools/go.mod task setup"

// Engine returns a client of the engine. The client is closed with the test.
func Engine(t testing.TB) *client.Client {
	t.Helper()
	eng, err := connect(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	})
	return eng
}

// Made reports whether this run of the tests has made a container. Others may be the user's own, or
// of the tests of other packages.
func Made(t testing.TB, id string) bool {
	t.Helper()
	c, err := Engine(t).ContainerInspect(context.WithoutCancel(t.Context()), id)
	if err != nil && !cerrdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil && c.Config.Labels[runLabel] == os.Getenv(runVariable)
}

func connect(ctx context.Context) (*client.Client, error) {
	eng, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation(), withoutIdle)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := eng.Ping(ctx); err != nil {
		return nil, fmt.Errorf("no Docker engine answers; %s: %w", instruction, err)
	}
	return eng, nil
}

// withoutIdle disables idle connections, so that tests can count open files.
func withoutIdle(eng *client.Client) error {
	if t, ok := eng.HTTPClient().Transport.(*http.Transport); ok {
		t.DisableKeepAlives = true
	}
	return nil
}

// Runner returns the path of the envrunner program for the engine's containers.
func Runner(t testing.TB) string {
	t.Helper()
	file, err := bundle.Path(t.Context(), bundle.Config{OS: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	return file
}
