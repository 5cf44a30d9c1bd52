package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sandboxapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// sandboxRoutes adds the operations of sandboxes.
func sandboxRoutes(t *table, s *Server) {
	const one = "/sandboxes/{id}"
	add(t, "GET", "/sandboxes", "List the sandboxes of a type", s.listSandboxes, "type")
	add(t, "POST", "/sandboxes", "Create a sandbox", s.createSandbox, "type")
	add(t, "POST", "/sandboxes/collect", "Remove orphans of a type", s.collect, "type")
	add(t, "GET", one, "The state of a sandbox", s.describeSandbox, "type")
	add(t, "DELETE", one, "End a sandbox", s.removeSandbox, "type")
	add(t, "GET", one+"/usage", "What a sandbox uses of its machine", s.readUsage, "type")
	add(t, "GET", one+"/history", "What happened to a sandbox", s.history, "type")
	add(t, "POST", one+"/pause", "Freeze a sandbox", s.pause, "type")
	add(t, "POST", one+"/resume", "Go on with a frozen sandbox", s.resume, "type")
	t.stream("GET", one+"/connect", "Work in a sandbox, over a WebSocket with the protocol of package guest", "application/octet-stream", s.connect, "type")
}

// kind is a type of sandboxes on this machine.
type kind struct {
	typ      string
	provider primitives.Provider
}

// kinds returns the type that a call names, else every one: the default first, then those that this machine is set up for.
func (s *Server) kinds(c *call) ([]kind, error) {
	types := []string{c.query.text("type")}
	if c.query.err != nil {
		return nil, c.query.err
	}
	if types[0] == "" {
		types[0] = s.cfg.Defaults.Sandbox.Type
		types = slices.DeleteFunc(append(types, environment.InstalledTypes()...), func(typ string) bool { return typ == "" })
	}
	var all []kind
	for i, typ := range types {
		if slices.Contains(types[:i], typ) {
			continue
		}
		sandbox := s.cfg.Defaults.Sandbox
		if typ != sandbox.Type {
			if err := sandbox.Choose(typ); err != nil {
				return nil, err
			}
		}
		p, err := s.provider(sandbox)
		if err != nil {
			return nil, err
		}
		all = append(all, kind{typ, p})
	}
	return all, nil
}

// found is the sandbox that a call names.
type found struct {
	boxID
	provider primitives.Provider
	open     primitives.EnvironmentPrimitive // nil if it is not open
}

var errNoSandbox = fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)

// find finds the sandbox that a call names.
func (s *Server) find(c *call) (found, error) {
	kinds, err := s.kinds(c)
	if err != nil {
		return found{}, err
	}
	id, caller := c.PathValue("id"), callerOf(c.Context())
	for _, k := range kinds {
		at := boxID{k.typ, id}
		if known, ok := s.boxes.look(at, caller); ok {
			return found{at, known.provider, known.sandbox}, nil
		}
	}
	if caller.Role != RoleAdmin {
		return found{}, errNoSandbox
	}
	if len(kinds) == 1 {
		return found{boxID{kinds[0].typ, id}, kinds[0].provider, nil}, nil
	}
	errs := []error{errNoSandbox}
	for _, k := range kinds {
		info, err := listed(c.Context(), k.provider, id)
		if err == nil && info.ID == id {
			return found{boxID{k.typ, id}, k.provider, nil}, nil
		}
		errs = append(errs, err)
	}
	return found{}, errors.Join(errs...)
}

// listed returns the entry of a sandbox in the list of its provider; a zero one if there is none.
func listed(ctx context.Context, p primitives.Provider, id string) (primitives.Info, error) {
	list, err := p.List(ctx)
	if i := slices.IndexFunc(list, func(i primitives.Info) bool { return i.ID == id }); i >= 0 {
		return list[i], nil
	}
	return primitives.Info{}, err
}

// use opens the sandbox that a call names.
func (s *Server) use(c *call) (at boxID, open primitives.EnvironmentPrimitive, release func(), err error) {
	f, err := s.find(c)
	if err == nil {
		open, release, err = s.boxes.use(c.Context(), f.boxID, f.provider)
	}
	return f.boxID, open, release, err
}

// provider returns the provider of sandboxes for clients.
func (s *Server) provider(sandbox environment.Sandbox) (primitives.Provider, error) {
	if sandbox.Type == "remote" { // with the token of this program for the other server
		return nil, fmt.Errorf("%w: a server has no sandboxes of another server; use that one", fs.ErrInvalid)
	}
	sandbox.Keep = true // their durable commands must outlive connections, so they need a runner
	return environment.Provider(environment.Config{Sandbox: sandbox, Runner: s.cfg.Defaults.Runner, Logger: s.log})
}

func (s *Server) createSandbox(c *call, in sandboxapi.New) (sandboxapi.Sandbox, error) {
	asked, err := json.Marshal(map[string]json.RawMessage{"sandbox": in.Sandbox})
	if err != nil {
		return sandboxapi.Sandbox{}, fmt.Errorf("%w: sandbox: %w", fs.ErrInvalid, err)
	}
	whole, err := complete(environment.Config{Sandbox: s.cfg.Defaults.Sandbox}, asked)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	cfg, err := environment.ParseConfig(whole)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	p, err := s.provider(cfg.Sandbox)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	spec := cfg.Sandbox.Spec
	if _, images := p.(primitives.ImageStore); images {
		spec.Image = cmp.Or(spec.Image, environment.DefaultImage)
		if in.Install != nil {
			spec.Install = *in.Install
		}
	}
	if len(in.Owner) > maxOwner {
		return sandboxapi.Sandbox{}, fmt.Errorf("%w: the owner has more than %d bytes", fs.ErrInvalid, maxOwner)
	}
	done, err := s.boxes.begin()
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	defer done()
	ctx, cancel := s.untilDrain(c.Context())
	defer cancel()
	made := spec
	made.Grace = 0 // counted here, from when the last client goes
	open, err := p.Create(ctx, made)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	at := boxID{cfg.Sandbox.Type, open.ID()}
	s.boxes.add(ctx, &box{boxID: at, provider: p, sandbox: open, kept: spec.Keep, grace: spec.Grace, creator: in.Owner, owner: callerOf(ctx).Name})
	is, err := described(ctx, at.typ, open)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil { // the client does not know that there is one
		_, eerr := s.boxes.end(context.WithoutCancel(ctx), at)
		return sandboxapi.Sandbox{}, errors.Join(err, eerr)
	}
	return is, nil
}

// maxOwner limits what a client says of itself, in bytes.
const maxOwner = 4 << 10

// untilDrain returns a context that also ends when the server stops.
func (s *Server) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.draining:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// described describes an open sandbox.
func described(ctx context.Context, typ string, p primitives.EnvironmentPrimitive) (sandboxapi.Sandbox, error) {
	state, err := p.Poll(ctx)
	return sandboxapi.Sandbox{ID: p.ID(), Type: typ, State: state, Capabilities: p.Capabilities()}, err
}

// describeSandbox does not open a sandbox, which would resume a paused one and count as a client.
func (s *Server) describeSandbox(c *call, _ none) (sandboxapi.Sandbox, error) {
	f, err := s.find(c)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	if f.open != nil {
		is, err := described(c.Context(), f.typ, f.open)
		if err == nil {
			return is, nil
		}
		s.log.Debug("a sandbox does not say its state", "type", f.typ, "sandbox", f.id, "error", err)
	}
	info, err := listed(c.Context(), f.provider, f.id)
	if err == nil && info.ID == "" {
		err = errNoSandbox
	}
	return sandboxapi.Sandbox{ID: f.id, Type: f.typ, State: primitives.State{Status: info.Status}}, err
}

func (s *Server) readUsage(c *call, _ none) (primitives.Usage, error) {
	_, open, release, err := s.use(c)
	if err != nil {
		return primitives.Usage{}, err
	}
	defer release()
	return primitives.ReadUsage(c.Context(), open)
}

func (s *Server) history(c *call, _ none) (sandboxapi.History, error) {
	f, err := s.find(c)
	if err != nil {
		return sandboxapi.History{}, err
	}
	h, ok := f.provider.(primitives.Historian)
	if !ok {
		return sandboxapi.History{}, nil // what happened is not known
	}
	incidents, err := h.History(c.Context(), f.id)
	return sandboxapi.History{Incidents: incidents}, err
}

func (s *Server) pause(c *call, _ none) (none, error) { return s.freeze(c, primitives.Pause) }

func (s *Server) resume(c *call, _ none) (none, error) { return s.freeze(c, primitives.Resume) }

func (s *Server) freeze(c *call, do func(context.Context, primitives.EnvironmentPrimitive) error) (none, error) {
	_, open, release, err := s.use(c)
	if err != nil {
		return none{}, err
	}
	defer release()
	return none{}, do(c.Context(), open)
}

func (s *Server) listSandboxes(c *call, _ none) (sandboxapi.List, error) {
	kinds, err := s.kinds(c)
	if err != nil {
		return sandboxapi.List{}, err
	}
	list, caller := sandboxapi.List{Sandboxes: []sandboxapi.Listed{}}, callerOf(c.Context())
	var errs []error
	for _, k := range kinds {
		found, err := k.provider.List(c.Context())
		errs = append(errs, err)
		for _, info := range found {
			known, ok := s.boxes.look(boxID{k.typ, info.ID}, caller)
			if ok || caller.Role == RoleAdmin {
				list.Sandboxes = append(list.Sandboxes, sandboxapi.Listed{Info: info, Creator: known.creator})
			}
		}
	}
	slices.SortStableFunc(list.Sandboxes, func(a, b sandboxapi.Listed) int { return a.Created.Compare(b.Created) })
	list.Error = s.beside(c, errors.Join(errs...))
	return list, nil
}

// beside returns an error that goes with an answer; nil for none.
func (s *Server) beside(c *call, err error) *apierror.Error {
	if err == nil {
		return nil
	}
	_, said := s.describe(c.Request, err)
	return &said
}

func (s *Server) removeSandbox(c *call, _ none) (none, error) {
	f, err := s.find(c)
	if err != nil {
		return none{}, err
	}
	if ok, err := s.boxes.end(c.Context(), f.boxID); ok || err != nil {
		return none{}, err
	}
	err = f.provider.Remove(c.Context(), f.id)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		s.boxes.forget(f.boxID)
	}
	return none{}, err
}

func (s *Server) collect(c *call, in sandboxapi.Collect) (sandboxapi.Collected, error) {
	kinds, err := s.kinds(c)
	if err != nil {
		return sandboxapi.Collected{}, err
	}
	done := sandboxapi.Collected{Removed: []primitives.Garbage{}}
	var errs []error
	for _, k := range kinds {
		if in.NoGrace {
			for _, id := range s.boxes.orphans(c.Context(), k.typ, !in.DryRun) {
				done.Removed = append(done.Removed, primitives.Garbage{Kind: "sandbox", ID: id, Why: "its client has gone"})
			}
		}
		if collector, ok := k.provider.(primitives.Collector); ok {
			more, err := collector.GC(c.Context(), primitives.GCOptions(in))
			done.Removed, errs = append(done.Removed, more...), append(errs, err)
		}
	}
	done.Error = s.beside(c, errors.Join(errs...))
	return done, nil
}

// connect serves a sandbox to a client until the client goes.
func (s *Server) connect(w http.ResponseWriter, c *call) error {
	switch {
	case !strings.EqualFold(c.Header.Get("Upgrade"), "websocket"):
		return fmt.Errorf("%w: this path is for a WebSocket", fs.ErrInvalid)
	case c.Header.Get("Origin") != "":
		return fmt.Errorf("%w: a page may not connect to a sandbox", fs.ErrPermission)
	}
	at, open, release, err := s.use(c)
	if err != nil {
		return err
	}
	defer release()
	conn, err := websocket.Accept(w, c.Request, &websocket.AcceptOptions{Subprotocols: []string{sandboxapi.Protocol}})
	if err != nil {
		s.log.Debug("no WebSocket", "error", err)
		return nil // Accept has answered
	}
	ctx, cancel := s.untilDrain(context.WithoutCancel(c.Context()))
	defer cancel()
	meet := sync.OnceFunc(func() { s.boxes.meet(at) })
	err = guest.Serve(ctx, sandboxapi.Stream(ctx, conn), open, guest.ServeConfig{
		Logger: s.log.Named("guest"), StayOnStream: true, Work: func(bool) { meet() },
	})
	s.log.Debug("a client has left a sandbox", "type", at.typ, "sandbox", at.id, "error", err)
	return nil
}
