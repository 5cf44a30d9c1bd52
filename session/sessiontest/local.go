package sessiontest

import (
	"context"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// Local returns a host of this program for the suite, and shuts it down with t.Cleanup.
func Local(t *testing.T, cfg session.HostConfig) Host {
	t.Helper()
	h, err := session.NewHost(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return localHost{h, t}
}

type localHost struct {
	*session.Host
	t *testing.T
}

func (h localHost) Create(ctx context.Context, cfg session.Config) (Session, error) {
	s, err := h.Host.Create(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return local{s, h.t}, nil
}

func (h localHost) Open(ctx context.Context, id string) (Session, error) {
	s, err := h.Host.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return local{s, h.t}, nil
}

type local struct {
	*session.AgentSession
	t *testing.T
}

func (s local) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (Turn, error) {
	t, err := s.AgentSession.Prompt(ctx, text, attachments...)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (s local) PromptQuery(ctx context.Context, q environment.Query) (Turn, error) {
	t, err := s.AgentSession.PromptQuery(ctx, q)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (s local) PromptOnce(ctx context.Context, q environment.Query) (Turn, error) {
	t, err := s.AgentSession.PromptOnce(ctx, q)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (s local) Fork(ctx context.Context, n int) ([]Session, error) {
	return s.own(s.AgentSession.Fork(ctx, n))
}

func (s local) ForkFrom(ctx context.Context, number, n int) ([]Session, error) {
	return s.own(s.AgentSession.ForkFrom(ctx, number, n))
}

// own closes the copies with the test.
func (s local) own(copies []*session.AgentSession, err error) ([]Session, error) {
	var list []Session
	for _, c := range copies {
		s.t.Cleanup(func() {
			if err := c.Close(); err != nil {
				s.t.Error(err)
			}
		})
		list = append(list, local{c, s.t})
	}
	return list, err
}
