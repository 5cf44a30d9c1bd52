package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/servertoken"
	"github.com/agentenv-dev/agentenv/primitives"
	sandboxes "github.com/agentenv-dev/agentenv/primitives/remote"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
)

// This file has what commands do with --server: with sessions of an 'envctl serve'.

// served are the commands that work with a server, and those to which it means nothing.
var served = []string{
	"envctl run", "envctl attach", "envctl answer", "envctl log", "envctl rewind", "envctl fork", "envctl compare", "envctl diff", "envctl fetch",
	"envctl sessions", "envctl sessions ls", "envctl sessions show", "envctl sessions export", "envctl sessions rm",
	"envctl permissions", "envctl permissions ls", "envctl permissions rm",
	"envctl", "envctl help", "envctl version", "envctl runner", "envctl serve", "envctl serve token", "envctl serve token add", "envctl serve token ls", "envctl serve token rm", "envctl doctor", "envctl completion",
}

// overServer are the commands that work with sandboxes of a server as with those of this machine.
var overServer = []string{
	"envctl create", "envctl exec", "envctl cp", "envctl port", "envctl ls", "envctl logs", "envctl stats", "envctl gc", "envctl rm", "envctl watch",
}

// overServer makes a sandbox one of the server: of the type that is chosen, else of that of the server. It leaves one that names
// its server, and refuses what does not reach the server.
func (a *app) overServer(s *environment.Sandbox) error {
	const remoteType = "remote"
	switch {
	case a.sandboxServer == "" || s.Type == remoteType:
		return nil
	case s.Provider != nil && !reflect.DeepEqual(s.Provider, primitives.NewProvider(s.Type)):
		return usagef("the settings that only %s has do not go to a server; leave them out, or put them into the configuration of its 'envctl serve'", s.Type)
	case s.Workspace != "" && s.UsesHostFolder():
		return usagef("sandbox.workspace is a folder of this machine, and the sandbox is on that of the server; leave it out")
	}
	s.Provider = &sandboxes.Provider{Server: a.sandboxServer, Sandbox: s.Type}
	s.Type = remoteType
	return nil
}

// findServer finds the server to use. A command that comes later finds one of the environment by itself.
func (a *app) findServer(cmd *cobra.Command) {
	if cmd.Flags().Changed("server") {
		a.serverFlag = "--server " + a.server + " "
		return
	}
	a.server = os.Getenv("AGENTENV_SERVER")
}

// refuseServer rejects --server for a command that would work on this machine nevertheless.
func (a *app) refuseServer(cmd *cobra.Command) error {
	path := cmd.CommandPath()
	if a.server == "" || slices.Contains(served, path) || strings.HasPrefix(path, "envctl completion ") || strings.HasPrefix(path, "envctl __complete") {
		return nil
	}
	if slices.Contains(overServer, path) {
		a.sandboxServer = a.server
		if _, err := servertoken.FromEnv(); err != nil { // before anything is asked for
			return &exitError{code: exitUsage, err: err}
		}
		return nil
	}
	return usagef("'%s' does not work with a server yet; leave out --server and AGENTENV_SERVER, or run it on the server's machine", path)
}

// client returns the client of the server. It warns when the connection breaks: then a command may wait for a minute.
func (a *app) client() (*remote.Client, error) {
	token, err := servertoken.Find(a.server)
	if errors.Is(err, fs.ErrInvalid) {
		return nil, &exitError{code: exitUsage, err: err}
	}
	if err != nil {
		return nil, err
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "agentenv", Level: hclog.Warn, Output: a.err})
	c, err := remote.New(remote.Config{URL: a.server, Token: token, Logger: log})
	if err != nil {
		return nil, usagef("--server: %w", err)
	}
	return c, nil
}

// explainServer adds to an error of a server what to do about it.
func explainServer(err error) error {
	switch {
	case errors.Is(err, remote.ErrUnauthorized):
		return fmt.Errorf("%w; set AGENTENV_TOKEN to the token of 'envctl serve'", err)
	case errors.Is(err, environment.ErrConfig), errors.Is(err, fs.ErrInvalid), errors.Is(err, errors.ErrUnsupported):
		return &exitError{code: exitUsage, err: err}
	}
	return err
}

// upToNow returns the events that a session has so far.
func upToNow(ctx context.Context, s *remote.Session, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		now, err := s.State(ctx)
		if err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		if from > now.LastSeq {
			return
		}
		for ev, err := range s.Events(ctx, from) {
			if !yield(ev, err) || ev.Seq >= now.LastSeq {
				return
			}
		}
	}
}

// logOfServed returns the log of a session of a server.
func logOfServed(s *remote.Session) *sessionLog {
	return &sessionLog{
		s: s, next: 1,
		prompt: func(ctx context.Context, q environment.Query) (query, error) {
			return s.PromptQuery(ctx, q)
		},
		stored: func(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
			return upToNow(ctx, s, from)
		},
	}
}

// localFlags are the flags of run that are about this machine.
var localFlags = []string{"in", "record", "replay"}

// instead is the advice about some of them.
var instead = map[string]string{"in": "; 'envctl attach' goes on with a session"}

// runServed runs an agent in a sandbox of the server.
func (f *runFlags) runServed(cmd *cobra.Command, prompts []string) (err error) {
	ctx := cmd.Context()
	for _, flag := range localFlags {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is about this machine, and the sandbox is on that of the server; leave it out%s", flag, instead[flag])
		}
	}
	cfg, err := f.configure(ctx)
	if err != nil {
		return err
	}
	switch {
	case !cfg.Delegation.IsZero():
		return usagef("the files of a delegation are of this machine, and the agents start on that of the server; put it into the configuration of its 'envctl serve'")
	case f.sandbox == "" && f.image == "" && f.config == "":
		cfg.Sandbox.Type = "" // the server's
	}
	if f.config == "" {
		cfg.Credentials = nil // the server's
	}
	own := cfg
	if isHere(cfg.Workspace) {
		cfg.Workspace = nil // it is sent
	}
	cfg.Logger, cfg.Progress = nil, nil
	for i, p := range prompts {
		if prompts[i], err = f.app.prompt(p); err != nil {
			return err
		}
	}
	attachments, err := f.readAttachments(ctx, environment.Config{}) // the server may have another agent
	if err != nil {
		return err
	}
	schema, err := f.readSchema(environment.Config{})
	if err != nil {
		return err
	}
	answer, err := f.app.newAnswerer(f.permission)
	if err != nil {
		return err
	}
	cfg.PermissionTimeout = answer.timeout()
	c, err := f.app.client()
	if err != nil {
		return err
	}
	if f.dryRun {
		return f.printServed(ctx, c, cfg, own)
	}
	var here *environment.Environment // the workspace on this machine; nil if it comes from elsewhere
	if len(cfg.Workspace) < len(own.Workspace) {
		if here, err = f.app.placeHere(ctx, own); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, here.Close()) }()
	}
	s, err := f.createServed(ctx, c, cfg, here)
	if err != nil {
		return explainServer(err)
	}
	v := f.app.newView(answer, f.newPrinter(prompts))
	v.respond, v.attachments = s.Respond, attachments
	answer.config.Store(&cfg)
	v.endsWith(schema)
	running, cancel := context.WithCancel(ctx)
	err = v.prompts(running, logOfServed(s), prompts)
	cancel() // what is still asked, after an error
	v.answering.Wait()
	err = errors.Join(err, v.show.finish())
	ending, stop := f.app.unhurried(ctx)
	defer stop()
	err = errors.Join(err, f.bringFromServer(ending, s, here, err))
	if !f.keep {
		err = errors.Join(err, c.Unload(ending, s.ID()))
	}
	if f.keep && !f.fillsOutput() {
		_, perr := fmt.Fprintln(f.app.out, s.ID())
		err = errors.Join(err, perr)
	}
	if f.app.err.Terminal || f.keep {
		_ = f.app.err.Println(term.Dim("go on with 'envctl " + f.app.serverFlag + "attach " + s.ID() + " PROMPT'"))
	}
	return err
}

// printServed prints the configuration as the server has checked it, with a workspace that would be sent.
func (f *runFlags) printServed(ctx context.Context, c *remote.Client, cfg, own environment.Config) error {
	config, err := c.Check(ctx, session.Config{Environment: cfg})
	if err == nil && len(cfg.Workspace) < len(own.Workspace) {
		config, err = withWorkspace(config, own)
	}
	if err != nil {
		return explainServer(err)
	}
	return f.print(config)
}

// createServed creates a session of the server. here has what its workspace begins with; nil if that comes from elsewhere.
func (f *runFlags) createServed(
	ctx context.Context, c *remote.Client, cfg environment.Config, here *environment.Environment,
) (*remote.Session, error) {
	s, err := c.Create(ctx, session.Config{Environment: cfg})
	if err != nil {
		return nil, err
	}
	if here != nil {
		err = f.app.upload(ctx, here, s)
	}
	if err == nil {
		err = f.write(s.ID())
	}
	if err != nil {
		return nil, errors.Join(err, s.Destroy(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// runServed follows a session of the server, and goes on with it.
func (f *attachFlags) runServed(cmd *cobra.Command, id string, prompts []string) (err error) {
	ctx := cmd.Context()
	for _, flag := range []string{"sandbox", "config", "env", "agent", "allow", "deny"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is for sessions of this machine; the server has the configuration of the session", flag)
		}
	}
	for i, p := range prompts {
		if prompts[i], err = f.app.prompt(p); err != nil {
			return err
		}
	}
	attachments, err := f.attachmentFlags.withPrompts(ctx, prompts)
	if err != nil {
		return err
	}
	schema, err := f.outputFlags.withPrompts(prompts)
	if err != nil {
		return err
	}
	answer, err := f.app.newAnswerer(f.permission)
	if err != nil {
		return err
	}
	s, err := f.app.servedSession(ctx, id)
	if err != nil {
		return err
	}
	v := f.app.newView(answer, f.app.newTranscriptPrinter(f.asJSON))
	v.attachments = attachments
	v.endsWith(schema)
	if f.permission != "" || answer.policy == permissionAsk || len(prompts) > 0 {
		v.respond = s.Respond // otherwise the client that gave the prompt answers
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel() // what is still asked, after an error
		v.answering.Wait()
		err = errors.Join(err, v.show.finish())
	}()
	turns, err := s.Turns(ctx)
	if err != nil {
		return err
	}
	if len(turns) == 0 && len(prompts) == 0 {
		state, err := s.State(ctx)
		if err != nil {
			return err
		}
		return v.last(ctx, func() iter.Seq2[runnerscripts.Event, error] { return upToNow(ctx, s, 1) }, state)
	}
	pending := make([]query, len(turns))
	for i, turn := range turns {
		pending[i] = turn
	}
	return v.goOn(ctx, logOfServed(s), pending, prompts, f.app.serverFlag+"attach "+s.ID())
}

// servedRecords returns the sessions of the server that match a filter.
func (a *app) servedRecords(ctx context.Context, filter store.Filter) (*remote.Client, []store.Record, error) {
	c, err := a.client()
	if err != nil {
		return nil, nil, err
	}
	var list []store.Record
	for r, err := range c.List(ctx, filter) {
		if errors.Is(err, store.ErrCorrupt) {
			r.Status, err = damagedStatus, nil
		}
		if err != nil {
			return nil, nil, explainServer(err)
		}
		list = append(list, r)
	}
	return c, list, nil
}

// servedSessions returns the sessions of the server for a list.
func (a *app) servedSessions(ctx context.Context, filter store.Filter, status string) ([]listedSession, error) {
	if filter.Status = status; status == queryWaiting {
		filter.Status = queryRunning
	}
	c, records, err := a.servedRecords(ctx, filter)
	var list []listedSession
	for _, r := range records {
		if r.Status == queryRunning {
			if state, err := c.Session(r.ID).State(ctx); err == nil && len(state.Pending) > 0 {
				r.Status = queryWaiting
			}
		}
		if status == "" || r.Status == status {
			list = append(list, listedSession{Record: r})
		}
	}
	return list, err
}

// servedSession returns the session of the server that id means; see findSession.
func (a *app) servedSession(ctx context.Context, id string) (*remote.Session, error) {
	c, records, err := a.servedRecords(ctx, store.Filter{})
	if err != nil {
		return nil, err
	}
	found := fitting(records, id)
	switch len(found) {
	case 1:
		return c.Session(found[0]), nil
	case 0:
		return nil, fmt.Errorf("the server has no session %q (%w); 'envctl %ssessions ls' shows those there are", id, store.ErrNotFound, a.serverFlag)
	}
	return nil, usagef("%q fits %d sessions of the server; give more of the ID", id, len(found))
}

// removeServed removes a session of the server, and ends its sandbox.
func (a *app) removeServed(ctx context.Context, id string) error {
	s, err := a.servedSession(ctx, id)
	if err != nil {
		return err
	}
	return s.Destroy(ctx)
}
