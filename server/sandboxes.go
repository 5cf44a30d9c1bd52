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

// find returns the sandbox that a call names, and its type.
func (s *Server) find(c *call) (kind, boxID, error) {
	kinds, err := s.kinds(c)
	if err != nil {
		return kind{}, boxID{}, err
	}
	id := c.PathValue("id")
	if len(kinds) == 1 || id == "" {
		return kinds[0], boxID{kinds[0].typ, id}, nil
	}
	for _, k := range kinds {
		if at := (boxID{k.typ, id}); s.boxes.has(at) {
			return k, at, nil
		}
	}
	var errs []error
	for _, k := range kinds {
		list, err := k.provider.List(c.Context())
		if slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == id }) {
			return k, boxID{k.typ, id}, nil
		}
		errs = append(errs, err)
	}
	return kind{}, boxID{}, errors.Join(append([]error{fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)}, errs...)...)
}

// use returns the sandbox that a call names, open. meets is as for boxes.use.
func (s *Server) use(c *call, meets bool) (open primitives.EnvironmentPrimitive, release func(), err error) {
	k, id, err := s.find(c)
	if err != nil {
		return nil, nil, err
	}
	return s.boxes.use(c.Context(), id, meets, func() (primitives.EnvironmentPrimitive, error) { return k.provider.Attach(c.Context(), id.id) })
}

// provider returns the provider of sandboxes for clients.
func (s *Server) provider(sandbox environment.Sandbox) (primitives.Provider, error) {
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
	made := spec
	made.Grace = 0 // counted here, from when the last client goes
	box, err := p.Create(c.Context(), made)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	err = s.boxes.add(c.Context(), boxID{cfg.Sandbox.Type, box.ID()}, box, spec, in.Owner)
	if err == nil {
		err = context.Cause(c.Context()) // the client does not know that there is one
	}
	if err != nil {
		_, terr := box.Terminate(context.WithoutCancel(c.Context()))
		return sandboxapi.Sandbox{}, errors.Join(err, terr, box.Close())
	}
	return described(c.Context(), box)
}

// described describes an open sandbox.
func described(ctx context.Context, p primitives.EnvironmentPrimitive) (sandboxapi.Sandbox, error) {
	state, err := p.Poll(ctx)
	return sandboxapi.Sandbox{ID: p.ID(), State: state, Capabilities: p.Capabilities()}, err
}

func (s *Server) describeSandbox(c *call, _ none) (sandboxapi.Sandbox, error) {
	open, release, err := s.use(c, false)
	if err != nil {
		return sandboxapi.Sandbox{}, err
	}
	defer release()
	return described(c.Context(), open)
}

func (s *Server) readUsage(c *call, _ none) (primitives.Usage, error) {
	open, release, err := s.use(c, false)
	if err != nil {
		return primitives.Usage{}, err
	}
	defer release()
	return primitives.ReadUsage(c.Context(), open)
}

func (s *Server) history(c *call, _ none) (sandboxapi.History, error) {
	k, id, err := s.find(c)
	if err != nil {
		return sandboxapi.History{}, err
	}
	h, ok := k.provider.(primitives.Historian)
	if !ok {
		return sandboxapi.History{}, nil // what happened is not known
	}
	incidents, err := h.History(c.Context(), id.id)
	return sandboxapi.History{Incidents: incidents}, err
}

func (s *Server) pause(c *call, _ none) (none, error) { return s.freeze(c, primitives.Pause) }

func (s *Server) resume(c *call, _ none) (none, error) { return s.freeze(c, primitives.Resume) }

func (s *Server) freeze(c *call, do func(context.Context, primitives.EnvironmentPrimitive) error) (none, error) {
	open, release, err := s.use(c, false)
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
	list := sandboxapi.List{Sandboxes: []sandboxapi.Listed{}}
	var errs []error
	for _, k := range kinds {
		found, err := k.provider.List(c.Context())
		errs = append(errs, err)
		for _, info := range found {
			list.Sandboxes = append(list.Sandboxes, sandboxapi.Listed{Info: info, Creator: s.boxes.creator(boxID{k.typ, info.ID})})
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
	k, id, err := s.find(c)
	if err != nil {
		return none{}, err
	}
	if ok, err := s.boxes.end(c.Context(), id); ok || err != nil {
		return none{}, err
	}
	return none{}, k.provider.Remove(c.Context(), id.id)
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
	open, release, err := s.use(c, true)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	defer cancel()
	conn, err := websocket.Accept(w, c.Request, &websocket.AcceptOptions{Subprotocols: []string{sandboxapi.Protocol}})
	if err != nil {
		s.log.Debug("no WebSocket", "error", err)
		return nil // Accept has answered
	}
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = guest.Serve(ctx, sandboxapi.Stream(ctx, conn), open, guest.ServeConfig{Logger: s.log.Named("guest")})
	s.log.Debug("a client has left a sandbox", "sandbox", open.ID(), "error", err)
	return nil
}
