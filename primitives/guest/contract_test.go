package guest_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// served is a sandbox of the engine, reached through a guest in this program.
type served struct {
	*guest.Sandbox
	engine *local.Sandbox
	cut    func() error
	ended  chan struct{}
	once   sync.Once
	err    error
}

// serveLocal serves the engine over a pipe.
func serveLocal(ctx context.Context, cfg guest.Config, engine *local.Sandbox, err error) (primitives.EnvironmentPrimitive, error) {
	if err != nil {
		return nil, err
	}
	host, inside := net.Pipe()
	s := &served{engine: engine, cut: inside.Close, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.err = guest.Serve(context.WithoutCancel(ctx), inside, engine, guest.ServeConfig{})
	}()
	s.Sandbox, err = guest.Dial(ctx, host, cfg)
	if err != nil {
		<-s.ended
		return nil, errors.Join(err, engine.Close())
	}
	return s, nil
}

// Close closes both ends.
func (s *served) Close() error {
	var err error
	s.once.Do(func() {
		err = s.Sandbox.Close()
		<-s.ended
		err = errors.Join(err, s.err, s.engine.Close())
	})
	return err
}

func TestContract(t *testing.T) {
	config := func(dir string) local.Config { return local.Config{Root: dir, Runner: runnerOf(t)} }
	primitivestest.Run(t, primitivestest.Harness{
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			engine, err := local.New(ctx, config(dir))
			return serveLocal(ctx, guest.Config{Isolation: primitives.IsolationFull}, engine, err)
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			engine, err := local.Attach(ctx, config(dir), id)
			return serveLocal(ctx, guest.Config{Isolation: primitives.IsolationFull}, engine, err)
		},
	})
}
