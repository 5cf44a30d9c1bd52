//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// missing is the error that this machine lacks what a benchmark needs.
type missing struct{ error }

func (m missing) Unwrap() error { return m.error }

// benchLabel marks the containers of this program. Its value is unique to a run.
const benchLabel = "agentenv-bench"

// engine is a Docker engine, with the image and runner of its containers.
type engine struct {
	*client.Client
	image, runner, run string
}

// withEngine calls use with an engine, and removes the containers that are left on it.
func withEngine(ctx context.Context, use func(e *engine) error) (err error) {
	eng, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	e := &engine{Client: eng, run: fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())}
	if _, err := e.Ping(ctx); err != nil {
		return missing{fmt.Errorf("start the Docker engine, or name it in DOCKER_HOST: %w", err)}
	}
	if e.image, err = testdocker.FindDebian(ctx, eng); err != nil {
		return missing{err}
	}
	if e.runner, err = bundle.Path(ctx, bundle.Config{OS: "linux"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.clean(ctx)) }()
	return use(e)
}

// clean removes all containers of this run, even if ctx is done.
func (e *engine) clean(ctx context.Context) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for looks := 2; ; {
		left, err := e.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", benchLabel+"="+e.run))})
		if err != nil {
			return fmt.Errorf("remove the containers with the label %s=%s yourself: %w", benchLabel, e.run, err)
		}
		for _, c := range left {
			_ = e.remove(ctx, c.ID) // the engine may already be removing it; the loop checks again
		}
		if looks--; len(left) == 0 && (looks <= 0 || !interrupted) {
			return nil
		}
		// The engine may still be creating a container for an interrupted call.
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("remove the containers with the label %s=%s yourself: %w", benchLabel, e.run, ctx.Err())
		}
	}
}

func (e *engine) remove(ctx context.Context, id string) error {
	return e.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

func (e *engine) labels() map[string]string { return map[string]string{benchLabel: e.run} }

// engineRounds is how often large data is moved through the engine, whose speed for the same
// data varies by half from one time to the next.
const engineRounds = 20

// way is a transport to the guest.
type way struct {
	name   string
	socket bool
}

func ways() []way { return []way{{"stdio", false}, {"socket", true}} }

// pick returns the first target for stdio and the second for a socket.
func (w way) pick(stdio, socket float64) float64 {
	if w.socket {
		return socket
	}
	return stdio
}

func (e *engine) config(w way) environment.Sandbox {
	return environment.Sandbox{
		Type: "docker",
		Spec: primitives.Spec{
			Image: e.image, Labels: e.labels(), Grace: 10 * time.Second,
			// Like the containers that they are compared with: without a limit of processors, and on
			// the network of the engine.
			CPUs: -1, Network: "bridge",
		},
		Provider: e.provider(w),
	}
}

func (e *engine) provider(w way) *docker.Provider {
	runner := func(context.Context, string, string) (string, error) { return e.runner, nil }
	return &docker.Provider{Host: e.DaemonHost(), Pull: docker.PullNever, Runner: runner, NoSocket: !w.socket}
}

// create creates the sandbox of a configuration.
func create(ctx context.Context, cfg environment.Sandbox) (*guest.Sandbox, error) {
	p, err := cfg.Provider.Create(ctx, cfg.Spec)
	if err != nil {
		return nil, err
	}
	return p.(*guest.Sandbox), nil // Create returns no other type
}

// box is a sandbox and its transport.
type box struct {
	way
	*guest.Sandbox
}

func (e *engine) open(ctx context.Context, w way, change func(*environment.Sandbox)) (box, error) {
	cfg := e.config(w)
	if change != nil {
		change(&cfg)
	}
	s, err := create(ctx, cfg)
	return box{w, s}, err
}

func (b box) end(ctx context.Context) error {
	_, err := b.Terminate(context.WithoutCancel(ctx))
	return errors.Join(err, b.Close())
}

// withBoxes calls use with one sandbox for each transport, whose configuration change may
// change.
func (e *engine) withBoxes(ctx context.Context, change func(*environment.Sandbox), use func(boxes []box) error) (err error) {
	var boxes []box
	defer func() {
		for _, b := range boxes {
			err = errors.Join(err, b.end(ctx))
		}
	}()
	for _, w := range ways() {
		b, err := e.open(ctx, w, change)
		if err != nil {
			return err
		}
		boxes = append(boxes, b)
	}
	return use(boxes)
}

// create creates and starts a container with the client API; the container only waits.
func (e *engine) create(ctx context.Context) (id string, err error) {
	made, err := e.ContainerCreate(ctx, &container.Config{Image: e.image, Cmd: []string{"sleep", "infinity"}, Labels: e.labels()}, nil, nil, nil, "")
	if err != nil {
		return "", err
	}
	return made.ID, e.ContainerStart(ctx, made.ID, container.StartOptions{})
}
