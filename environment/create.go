package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Create makes a sandbox of the configured type and prepares it. Closing the environment ends
// the sandbox, unless cfg.Sandbox.Keep is set.
//
// ctx covers the creation only. If Create fails, nothing is left of the sandbox.
func Create(ctx context.Context, cfg Config) (*Environment, error) {
	if err := cfg.Check(ctx); err != nil {
		return nil, err
	}
	if err := cfg.findExecutor(); err != nil {
		return nil, err
	}
	if cfg.Name != "" {
		if err := kept.CheckNameFree(ctx, cfg.Name, lives); err != nil { // before creating anything
			return nil, err
		}
	}
	cfg = cfg.withRedactingLogger()
	if cfg.SessionID == "" {
		cfg.SessionID = uuid.NewString()
	}
	p, err := cfg.createSandbox(ctx)
	if err != nil {
		return nil, err
	}
	terminate := func() error {
		_, err := p.Terminate(context.WithoutCancel(ctx))
		return errors.Join(err, p.Close())
	}
	from := origin{release: terminate, kept: cfg.Sandbox.Keep, log: kept.NewLog(cfg.firstRecord(p, cfg.Sandbox.Keep))}
	if cfg.Sandbox.Keep {
		from.release = p.Close
	}
	e, err := prepare(ctx, p, cfg, from)
	if err != nil {
		return nil, errors.Join(err, terminate())
	}
	if err := e.writeRecord(ctx); err != nil {
		return nil, errors.Join(err, e.Terminate(ctx))
	}
	if cfg.Name != "" {
		if err := e.origin.log.SetName(ctx, cfg.Name, lives); err != nil {
			return nil, errors.Join(err, e.Terminate(ctx))
		}
	}
	e.log.Info("sandbox created", "kept", cfg.Sandbox.Keep)
	return e, nil
}

// Attach opens a kept sandbox again, from this or another program. id is its [Environment.ID]
// or, if no sandbox has this ID, its Config.Name. Attach does not place the sources of
// cfg.Workspace again. [Environment.Changes] count from the sandbox's creation. Closing the
// environment leaves the sandbox as it is. If id is unknown or the sandbox is gone, the error is
// fs.ErrNotExist.
//
// An empty SessionID means that of the sandbox. An Agent without a name means the agent that the
// sandbox was created with, or a later one that was prepared in it. This machine stores both for
// the user that created the sandbox, with what the sandbox may reach; nothing in the sandbox can
// change them. On another machine, for another user, or if the sandbox has lost the note of its
// session or names another one there, Attach takes only SessionID and IgnoreChanges from that note.
// Then without an Agent the scripts return [ErrConfig], and Changes returns errors.ErrUnsupported,
// as for a sandbox that was created without Keep. Attach fails if the record of this machine is
// damaged.
func Attach(ctx context.Context, cfg Config, id string) (*Environment, error) {
	cfg = cfg.withRedactingLogger()
	provider, err := cfg.Sandbox.provider(cfg)
	if err != nil {
		return nil, err
	}
	p, err := provider.Attach(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		if named := kept.IDOf(cfg.Sandbox.Type, id); named != "" {
			p, err = provider.Attach(ctx, named)
		}
	}
	if err != nil {
		return nil, explainUnknown(fmt.Errorf("attach to the sandbox: %w", cfg.Sandbox.settingError(err)), cfg.Sandbox.Type, id)
	}
	from := origin{release: p.Close, placed: true, kept: true}
	if cfg, err = readRecord(ctx, p, cfg, &from); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	e, err := prepare(ctx, p, cfg, from)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	e.log.Info("attached to the sandbox")
	return e, nil
}

// Remove ends a sandbox with all that runs in it, whichever program created it. id is its
// [Environment.ID] or name, as for [Attach]. Remove does not use anything that the sandbox says
// about itself. Its errors are those of [Attach].
func Remove(ctx context.Context, s Sandbox, id string) error {
	p, err := s.provider(Config{})
	if err != nil {
		return err
	}
	remove := func(id string) error {
		kept.MarkEnding(s.Type, id)
		err := p.Remove(ctx, id)
		if err == nil {
			kept.Forget(s.Type, id)
		}
		return err
	}
	err = remove(id)
	if errors.Is(err, fs.ErrNotExist) {
		if named := kept.IDOf(s.Type, id); named != "" {
			err = remove(named)
		}
	}
	if err != nil {
		return explainUnknown(fmt.Errorf("remove the sandbox: %w", err), s.Type, id)
	}
	return nil
}

// unknownIDError means that no sandbox of a type has an ID.
type unknownIDError struct {
	typ, id string
	err     error // of the backend
}

func (e *unknownIDError) Error() string {
	return fmt.Sprintf("%s: no sandbox %q; List shows those there are", e.typ, e.id)
}

func (e *unknownIDError) Unwrap() error { return e.err }

// explainUnknown gives the errors of all backends for an unknown ID the same text. It does not
// change other errors, such as that of a socket or a runner that does not exist.
func explainUnknown(err error, typ, id string) error {
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, ErrConfig) {
		return err
	}
	return &unknownIDError{typ, id, err}
}
