//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// modalImage is the image of the sandboxes. The server uses this machine's files for it.
const modalImage = "debian:12"

// modalSide is a server in this program that speaks Modal's protocol, with Modal's SDK and ours
// as clients. It is not Modal: between two machines each call takes another round trip, so the
// numbers of calls say more than the times.
type modalSide struct {
	*testmodal.Server
	client *sdk.Client
	app    *sdk.App
	image  *sdk.Image
	runner string
}

// withModal calls use with a server, and ends the server.
func withModal(ctx context.Context, use func(m *modalSide) error) (err error) {
	m := &modalSide{}
	if m.runner, err = bundle.Path(ctx, bundle.Config{OS: "linux"}); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-modal-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if m.Server, err = testmodal.Start(ctx, testmodal.Options{Dir: dir}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	restore, err := m.environ(filepath.Join(dir, "modal.toml"))
	defer restore()
	if err != nil {
		return err
	}
	m.client, err = sdk.NewClientWithOptions(&sdk.ClientParams{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer m.client.Close()
	if m.app, err = m.client.Apps.FromName(ctx, "bench", &sdk.AppFromNameParams{CreateIfMissing: true}); err != nil {
		return err
	}
	if m.image, err = m.client.Images.FromRegistry(modalImage, nil).Build(ctx, m.app, nil); err != nil {
		return err
	}
	return use(m)
}

// environ points clients of this program to the server until restore is called.
func (m *modalSide) environ(config string) (restore func(), err error) {
	var undo []func()
	restore = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, entry := range m.Environ(config) {
		name, value, _ := strings.Cut(entry, "=")
		if before, set := os.LookupEnv(name); set {
			undo = append(undo, func() { _ = os.Setenv(name, before) })
		} else {
			undo = append(undo, func() { _ = os.Unsetenv(name) })
		}
		if err := os.Setenv(name, value); err != nil {
			return restore, err
		}
	}
	return restore, os.WriteFile(config, nil, 0o600)
}

func (m *modalSide) create(ctx context.Context) (*sdk.Sandbox, error) {
	return m.client.Sandboxes.Create(ctx, m.app, m.image, &sdk.SandboxCreateParams{Timeout: time.Hour})
}

func (m *modalSide) open(ctx context.Context) (*guest.Sandbox, error) {
	runner := func(context.Context, string, string) (string, error) { return m.runner, nil }
	p, err := modal.Provider{App: m.app.Name, Timeout: time.Hour, Runner: runner}.Create(ctx, primitives.Spec{Image: modalImage})
	if err != nil {
		return nil, err
	}
	return p.(*guest.Sandbox), nil // Create returns no other type
}

// withBoth calls use with a sandbox of the SDK and one of ours.
func (m *modalSide) withBoth(ctx context.Context, use func(base *sdk.Sandbox, ours *guest.Sandbox) error) (err error) {
	base, err := m.create(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_, terr := base.Terminate(context.WithoutCancel(ctx), &sdk.SandboxTerminateParams{Wait: true})
		err = errors.Join(err, terr, base.Detach())
	}()
	ours, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_, terr := ours.Terminate(context.WithoutCancel(ctx))
		err = errors.Join(err, terr, ours.Close())
	}()
	return use(base, ours)
}

// sdkExec runs a command with the SDK until its exit status, as the SDK's examples do.
func sdkExec(ctx context.Context, box *sdk.Sandbox, out io.Writer, args ...string) error {
	p, err := box.Exec(ctx, args, nil)
	if err != nil {
		return err
	}
	_, cerr := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{p.Stdout}, make([]byte, 1<<20))
	code, err := p.Wait(ctx, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q ended with %d", args, code)
	}
	return errors.Join(cerr, err)
}

// sdkTrue runs the cheapest command and ignores its output.
func sdkTrue(ctx context.Context, box *sdk.Sandbox) error {
	p, err := box.Exec(ctx, trueCommand.Args, &sdk.SandboxExecParams{Stdout: sdk.Ignore, Stderr: sdk.Ignore})
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("/bin/true ended with %d", code)
	}
	return err
}

// callsOf returns the number of calls that do makes, as the mean of several times.
func (m *modalSide) callsOf(times int, do func() error) (float64, error) {
	total := func() (n int) {
		for _, c := range m.CallCounts() {
			n += c
		}
		return n
	}
	before := total()
	for range times {
		if err := do(); err != nil {
			return 0, err
		}
	}
	return float64(total()-before) / float64(times), nil
}

// callsRow compares the numbers of calls of the SDK and of ours for the same task. A call is a
// round trip, which between machines costs more than everything else.
func (m *modalSide) callsRow(name, base string, times int, theirs, ours func() error, target float64) (row, error) {
	b, err := m.callsOf(times, theirs)
	if err != nil {
		return row{}, err
	}
	o, err := m.callsOf(times, ours)
	return ratioRow(name+", calls", base, "RPCs", lower, b, o, target), err
}
