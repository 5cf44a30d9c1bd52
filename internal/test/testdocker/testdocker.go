// Package testdocker gives tests a Docker engine, and images that need no registry.
package testdocker

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// instruction is the advice when a prerequisite is missing: tests with Docker are never
// skipped.
const instruction = "run the set-up first, which installs and starts what the tests need: go tool -modfile=tools/go.mod task setup"

// Engine returns a client of the engine. The client is closed with the test.
func Engine(t testing.TB) *client.Client {
	t.Helper()
	eng, err := connect()
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

func connect() (*client.Client, error) {
	eng, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation(), withoutIdle)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) //nolint:forbidigo // used by TestMain, too, which has no context
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
