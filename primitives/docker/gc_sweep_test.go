package docker_test

import (
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestAProgramSweepsOnceForManySandboxes counts the last request of a sweep.
func TestAProgramSweepsOnceForManySandboxes(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Scratch(t))
	proxy := testdocker.NewProxy(t)
	cfg.Host = proxy.Host()
	var swept atomic.Int32
	asked := make(chan struct{}, 100)
	proxy.Before(func(_, path string) {
		if strings.Contains(path, "/images/json?") {
			swept.Add(1)
			asked <- struct{}{}
		}
	})
	once := func() {
		t.Helper()
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatal("nothing was looked for")
		}
	}
	began := time.Now()
	open(t, cfg)
	once()
	for range 3 {
		open(t, cfg)
	}
	// On a very slow machine the next sweep may be due.
	if n := swept.Load(); n != 1 && time.Since(began) < docker.SweepInterval {
		t.Errorf("the engine was swept %d times", n)
	}
	docker.ForgetSweep(cfg.Host)
	open(t, cfg)
	once()
}

// The next start repeats a sweep that was interrupted.
func TestAnInterruptedSweepIsRepeated(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Scratch(t))
	proxy := testdocker.NewProxy(t)
	cfg.Host = proxy.Host()
	begun, failed := make(chan struct{}, 100), make(chan struct{})
	proxy.Before(func(_, path string) {
		switch {
		case strings.Contains(path, "/containers/json?"):
			begun <- struct{}{}
			<-failed // the sweep fails here
		case strings.Contains(path, "/images/agentenv-test-missing/json"):
			<-begun
		}
	})
	missing := cfg
	missing.Image, missing.Pull = "agentenv-test-missing", docker.PullNever
	if _, err := docker.New(t.Context(), missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	close(failed)
	open(t, cfg)
	select {
	case <-begun:
	case <-time.After(patience):
		t.Error("nothing was looked for")
	}
}
