package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Create makes a sandbox of the configured type and prepares it. Closing the
// environment ends that sandbox, unless cfg.Sandbox.Keep is set.
//
// ctx covers the creation only. When Create fails nothing is left of the sandbox.
func Create(ctx context.Context, cfg Config) (*Environment, error) {
	if err := cfg.Check(ctx); err != nil {
		return nil, err
	}
	if cfg.Name != "" {
		if err := checkNameFree(ctx, cfg.Name); err != nil { // before anything is made
			return nil, err
		}
	}
	cfg = cfg.withQuietLogger()
	p, err := cfg.createSandbox(ctx)
	if err != nil {
		return nil, err
	}
	terminate := func() error {
		_, err := p.Terminate(context.WithoutCancel(ctx))
		return errors.Join(err, p.Close())
	}
	own := owner{release: terminate, kept: cfg.Sandbox.Keep}
	if cfg.Sandbox.Keep {
		own.release = p.Close
	}
	e, err := prepare(ctx, p, cfg, own)
	if err != nil {
		return nil, errors.Join(err, terminate())
	}
	if err := e.leaveRecord(ctx); err != nil {
		return nil, errors.Join(err, e.Terminate(ctx))
	}
	if err := e.logActivity(ctx); err != nil {
		return nil, errors.Join(err, e.Terminate(ctx))
	}
	e.log.Info("sandbox created", "kept", cfg.Sandbox.Keep)
	return e, nil
}

// Attach opens a sandbox again that was kept, by its [Environment.ID] or, if none has this
// ID, by its Config.Name, from this or another program. The sources of cfg.Workspace are not placed again; an Agent
// without a name and an empty SessionID mean those that it was created with, and of a
// sandbox that was created without an agent, the first that was prepared in it;
// [Environment.Changes] are counted from its creation. The machine and user that
// created it remember that; nothing in the sandbox can change it. Elsewhere, and where
// the sandbox's own note is of another session, only its SessionID and IgnoreChanges
// are taken from that note: without an Agent the scripts are [ErrConfig], and Changes
// errors.ErrUnsupported, as of a sandbox that was made without Keep. Closing the
// environment leaves the sandbox as it is. An id that is unknown or gone is fs.ErrNotExist.
func Attach(ctx context.Context, cfg Config, id string) (*Environment, error) {
	cfg = cfg.withQuietLogger()
	provider, err := cfg.Sandbox.provider(cfg)
	if err != nil {
		return nil, err
	}
	p, err := provider.Attach(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		if named := idOf(cfg.Sandbox.Type, id); named != "" {
			p, err = provider.Attach(ctx, named)
		}
	}
	if err != nil {
		return nil, explainUnknown(fmt.Errorf("attach to the sandbox: %w", cfg.Sandbox.settingError(err)), cfg.Sandbox.Type, id)
	}
	own := owner{release: p.Close, placed: true, kept: true}
	own.used = usedIn(cfg.Sandbox.Type, p.ID())
	if cfg, err = readRecord(ctx, p, cfg, &own); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	e, err := prepare(ctx, p, cfg, own)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	e.recallActivity()
	e.log.Info("attached to the sandbox")
	return e, nil
}

// Remove ends a sandbox by its [Environment.ID] or name, as [Attach] finds it, with all that
// runs in it, whichever program made it. It needs nothing of what the sandbox says about itself, and its errors
// are those of [Attach].
func Remove(ctx context.Context, s Sandbox, id string) error {
	p, err := s.provider(Config{})
	if err != nil {
		return err
	}
	remove := func(id string) error {
		markEnding(s.Type, id)
		err := p.Remove(ctx, id)
		if err == nil {
			forget(s.Type, id)
		}
		return err
	}
	err = remove(id)
	if errors.Is(err, fs.ErrNotExist) {
		if named := idOf(s.Type, id); named != "" {
			err = remove(named)
		}
	}
	if err != nil {
		return explainUnknown(fmt.Errorf("remove the sandbox: %w", err), s.Type, id)
	}
	return nil
}

// unknownIDError says that no sandbox of a type has an ID.
type unknownIDError struct {
	typ, id string
	err     error // of the backend
}

func (e *unknownIDError) Error() string {
	return fmt.Sprintf("%s: no sandbox %q; List shows those there are", e.typ, e.id)
}

func (e *unknownIDError) Unwrap() error { return e.err }

// explainUnknown gives the errors of all backends for an unknown ID one text. A socket or a
// runner that does not exist is another error.
func explainUnknown(err error, typ, id string) error {
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, ErrConfig) {
		return err
	}
	return &unknownIDError{typ, id, err}
}
