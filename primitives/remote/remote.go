// Package remote runs sandboxes on the machine of another agentenv server, an 'envctl serve': of any type that the server has.
//
// The server creates the sandbox, and commands, files and forwarded connections go over one WebSocket, in the protocol of package
// guest. When no program is connected any more, the server ends the sandbox after its grace period, see [primitives.Spec].Grace.
// Durable commands go on meanwhile: attach to the sandbox and reattach to them. A kept sandbox lives until it is terminated or
// removed. When the server stops, it ends the sandboxes that are not kept.
//
// Where to look: config.go checks the settings; remote.go creates, attaches to, lists and removes sandboxes; call.go makes the
// requests; driver.go connects to a sandbox, asks for its state and ends it. The other end is sandboxes.go and boxes.go of package
// server.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/internal/sandboxapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

const backend = "remote"

var (
	_ primitives.Provider    = Provider{}
	_ primitives.SpecChecker = Provider{}
	_ primitives.Collector   = Provider{}
	_ primitives.Detector    = Provider{}
	_ primitives.Examiner    = Provider{}
	_ primitives.Historian   = Provider{}
	_ primitives.Installer   = Provider{}
	_ primitives.Addressed   = (*Provider)(nil)
)

// Create creates a sandbox on the server. ctx covers only the creation. If Create fails, nothing of the sandbox remains. If
// Spec.Grace is zero, it is 30 seconds. What spec leaves out is as in the server's configuration, if that has the same type.
//
// Errors: those of the type on the server, [ErrUnauthorized], and [primitives.ErrUnavailable] if the server cannot be reached.
func (p Provider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	s, err := p.create(ctx, spec)
	if err != nil {
		return nil, wrap("create", p.where(), err)
	}
	return s, nil
}

func (p Provider) create(ctx context.Context, spec primitives.Spec) (*guest.Sandbox, error) {
	if err := p.CheckSpec(spec); err != nil {
		return nil, err
	}
	wanted, err := p.sandbox(spec)
	if err != nil {
		return nil, err
	}
	self, err := json.Marshal(owner.Self())
	if err != nil {
		return nil, err
	}
	body := sandboxapi.New{Sandbox: wanted, Owner: string(self)}
	if spec.Install.Program != "" {
		body.Install = &spec.Install
	}
	var made sandboxapi.Sandbox
	if err := p.call(ctx, http.MethodPost, sandboxapi.Path, body, &made); err != nil {
		return nil, err
	}
	d := &driver{provider: p, id: made.ID, can: made.Capabilities}
	d.provider.Sandbox = made.Type
	s, err := d.open(ctx, spec.Keep)
	if err != nil {
		err = errors.Join(err, d.End(ctx))
	}
	return s, err
}

// Attach returns a live sandbox by its ID, also one that another program created. Both programs share it. An ID without a
// sandbox returns fs.ErrNotExist.
func (p Provider) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	s, err := p.attach(ctx, id)
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	return s, nil
}

func (p Provider) attach(ctx context.Context, id string) (*guest.Sandbox, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	d := &driver{provider: p, id: id}
	s, err := d.open(ctx, false)
	if err != nil {
		return nil, err
	}
	is, err := p.find(ctx, id) // now it is open, so the server knows what it can do
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	d.can, d.provider.Sandbox = is.Capabilities, is.Type
	return s, nil
}

// find returns what the server knows of a sandbox.
func (p Provider) find(ctx context.Context, id string) (is sandboxapi.Sandbox, err error) {
	if err = p.check(); err == nil {
		err = p.call(ctx, http.MethodGet, sandboxapi.Of(id), nil, &is)
	}
	return is, err
}

// List returns the sandboxes of the type on the server, oldest first: also those that programs of that machine have created.
func (p Provider) List(ctx context.Context) ([]primitives.Info, error) {
	var found sandboxapi.List
	err := p.check()
	if err == nil {
		err = p.call(ctx, http.MethodGet, sandboxapi.Path, nil, &found)
	}
	list := make([]primitives.Info, 0, len(found.Sandboxes))
	for _, l := range found.Sandboxes {
		list = append(list, describe(l))
	}
	if found.Error != nil {
		err = errors.Join(err, codes.Err(*found.Error))
	}
	return list, wrap("list", p.where(), err)
}

// describe changes the server's view of a sandbox to the client's: for the server it is the owner, for its client the program
// that asked for the sandbox.
func describe(l sandboxapi.Listed) primitives.Info {
	info := l.Info
	if l.Creator == "" {
		return info // of a program of the server's machine, or of another start of the server
	}
	var made owner.Identity
	if err := json.Unmarshal([]byte(l.Creator), &made); err != nil {
		made = owner.Identity{} // of another release; it is unknown
	}
	liveness := made.Liveness()
	info.Owner = made.Host + ":" + made.PID
	info.Owned = liveness == owner.Alive
	info.Orphan = !info.Kept && liveness == owner.Dead
	return info
}

// Remove ends a sandbox and everything that runs in it. An ID without a sandbox returns fs.ErrNotExist.
func (p Provider) Remove(ctx context.Context, id string) error {
	err := p.check()
	if err == nil {
		err = p.call(ctx, http.MethodDelete, sandboxapi.Of(id), nil, nil)
	}
	return wrap("remove", id, err)
}

// GC removes orphans of the type on the server: as the type does there, and with NoGrace the sandboxes that are not kept and whose
// clients have gone.
func (p Provider) GC(ctx context.Context, opts primitives.GCOptions) ([]primitives.Garbage, error) {
	var done sandboxapi.Collected
	err := p.check()
	if err == nil {
		err = p.call(ctx, http.MethodPost, sandboxapi.Path+"/collect", sandboxapi.Collect(opts), &done)
	}
	if done.Error != nil {
		err = errors.Join(err, codes.Err(*done.Error))
	}
	return done.Removed, wrap("gc", p.where(), err)
}

// History returns what happened to a sandbox, as far as its type on the server knows.
func (p Provider) History(ctx context.Context, id string) ([]primitives.Incident, error) {
	var found sandboxapi.History
	err := p.check()
	if err == nil {
		err = p.call(ctx, http.MethodGet, sandboxapi.Of(id, "history"), nil, &found)
	}
	return found.Incidents, wrap("history", id, err)
}

// Installs marks that Create uses Spec.Install if the type on the server has images.
func (p Provider) Installs() {}

// Address returns Server, which a file may write after the type: "remote:https://build1:8377".
func (p *Provider) Address() *string { return &p.Server }

// Present reports whether Server is set.
func (p Provider) Present() bool { return p.Server != "" }

// Examine asks the server for its sandboxes. Without a Server there is nothing to say.
func (p Provider) Examine(ctx context.Context, _ primitives.Spec) []primitives.Finding {
	if p.Server == "" {
		return nil
	}
	list, err := p.List(ctx)
	if err != nil {
		return []primitives.Finding{{Subject: "server", Status: primitives.FindingFailed, Err: err}}
	}
	return []primitives.Finding{{Subject: "server", Detail: fmt.Sprintf("%s has %d sandboxes", p.where(), len(list))}}
}

// wrap adds to an error where it came from. It returns nil for nil.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}

// gone reports whether an error says that there is no such sandbox.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrTerminated)
}
