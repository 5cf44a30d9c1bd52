package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/servertoken"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/postgres"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	target
	ruleFlags
	listen, tokenFile, cert, key string
	database, advertise, agents  string
	idle                         time.Duration
}

func (a *app) newServeCmd() *cobra.Command {
	f := &serveFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the sessions of this machine over HTTP",
		Long: `Serve the sessions of this machine over HTTP, until it is interrupted. 'envctl --server URL'
uses them from elsewhere, as do programs by package session/remote and by what
URL/v1/openapi.json describes.

A client with the token may do what you may do here: run commands, in sandboxes of any kind. The
token is in the file of --token-file. Without that flag each start makes a new token: envctl of the
same user on this machine finds it by the address, and elsewhere AGENTENV_TOKEN gives it. For
others 'envctl serve token add' makes tokens that may do less.

A session has the settings of --config and --sandbox where its client gives none. The rules of
--allow and --deny hold for all sessions beside those of the session: the stricter one counts, and
no client can lift them. API keys in the
environment of serve stay here, outside the sandboxes. At the end clients reconnect later, sessions
are closed and sandboxes that are not kept end.

Runners elsewhere ('envctl runner') take runs from the coordinator, at URL/coordinator. Of several
servers of this user on one machine the first has it.

Servers with the same --database, of PostgreSQL, share their sessions: each answers for all, and
the sessions of one that dies go on at another. They need the same --token-file. Keep the password
out of the URL, which other users of this machine can read: PGPASSWORD or ~/.pgpass may have it.`,
		Example: `  envctl serve
  envctl serve --sandbox docker --config agents.yaml --deny 'Bash(git push *)'
  envctl serve --listen 10.0.0.5:8377 --token-file token --tls-cert cert.pem --tls-key key.pem
  envctl serve --database postgres://agentenv@db/agentenv --token-file token --listen 10.0.0.5:8377
  envctl --server http://127.0.0.1:8377 run --agent claude "Explain this"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.target.flags(cmd)
	f.ruleFlags.flags(cmd)
	cmd.AddCommand(a.newServeTokenCmd())
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8377", "address to listen on, HOST:PORT; port 0 takes a free one")
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the token that clients must send; only you may be able to read it")
	fl.StringVar(&f.cert, "tls-cert", "", "file with the certificate, for https")
	fl.StringVar(&f.key, "tls-key", "", "file with the key of the certificate")
	fl.StringVar(&f.agents, "agents", "", "JSON file with the agents that runs of the coordinator may name: a list of objects with name and others")
	fl.StringVar(&f.database, "database", "", "URL of a PostgreSQL database for the sessions, in place of this user's store")
	fl.StringVar(&f.advertise, "advertise", "", "URL at which the other servers of the database reach this one (default: that of --listen)")
	fl.DurationVar(&f.idle, "idle", 30*time.Minute, "close a session that had no query and no reader for so long, and end its sandbox if that is not kept; 0 for never")
	return cmd
}

func (f *serveFlags) run(ctx context.Context) (err error) {
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	log := cfg.Logger
	cfg.Logger = nil
	cfg.Sandbox.Type = firstOf(cfg.Sandbox.Type, defaultType)
	var limits permission.Rules
	if err := f.addTo(&limits); err != nil {
		return err
	}
	if f.idle < 0 {
		return usagef("--idle: %s is negative; give a positive time, or 0 for never", f.idle)
	}
	if err := f.checkDatabase(); err != nil {
		return err
	}
	l, url, err := f.open(ctx)
	if err != nil {
		return err
	}
	token, remove, err := f.token(url)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, remove()) }()
	st, closeStore, err := f.store(ctx, url)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	coordinates, closeCoordinator, err := f.openCoordinator(ctx, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, closeCoordinator()) }()
	reopened := server.Sessions(log)
	reopened.Environment.Agent.Env = cfg.Agent.Env // which no session stores
	tools := f.app.delegates(environment.Config{Logger: log}, nil)
	reopened.Environment.AgentTools = tools.Tools
	reopened.Environment.PermissionLimits = limits
	host, err := session.NewHost(session.HostConfig{Store: st, Session: reopened, Idle: f.idle})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	tools.Use(host)
	limited := cfg
	limited.PermissionLimits = limits
	srv, err := server.New(server.Config{
		Host: host, Token: token, Authenticate: issued, Sandboxes: true, Defaults: cfg, Logger: log, Modes: modesOf(limited), Coordinator: coordinates,
		Configure: func(_ context.Context, c *session.Config) error {
			c.Environment.AgentTools = tools.Tools
			return nil
		},
	})
	if err != nil {
		return errors.Join(err, l.Close(), host.Shutdown(ctx))
	}
	f.app.status.Off()
	if err := f.say(url); err != nil {
		return errors.Join(err, l.Close(), host.Shutdown(ctx))
	}
	err = srv.Serve(ctx, l)
	ending, stop := f.app.unhurried(ctx)
	defer stop()
	return errors.Join(err, host.Shutdown(ending))
}

// checkDatabase refuses flags of a server that others could not reach.
func (f *serveFlags) checkDatabase() error {
	switch host, _, _ := net.SplitHostPort(f.listen); {
	case f.database == "" && f.advertise != "":
		return usagef("--advertise is for servers that share a database; give --database, too")
	case f.database == "":
	case f.tokenFile == "":
		return usagef("--database: the servers of a database pass requests on to each other, so they need the same token; give --token-file")
	case f.advertise != "":
		if u, err := url.Parse(f.advertise); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usagef("--advertise: %q is no address of a server; give a URL such as http://10.0.0.5:8377", f.advertise)
		}
	case host == "" || net.ParseIP(host).IsUnspecified():
		return usagef("--listen %s is no address at which another server reaches this one; --advertise gives it", f.listen)
	}
	return nil
}

// store opens the store of the sessions. url is where this server listens.
func (f *serveFlags) store(ctx context.Context, url string) (store.Store, func() error, error) {
	if f.database == "" {
		st, err := sessionstore.Open(ctx)
		if err != nil {
			return nil, nil, err
		}
		return st, st.Close, nil
	}
	st, err := postgres.Config{Name: firstOf(f.advertise, url)}.Open(ctx, f.database)
	if err != nil {
		return nil, nil, fmt.Errorf("--database: %w", err)
	}
	return st, st.Close, nil
}

// say prints the address, and how to use it.
func (f *serveFlags) say(url string) error {
	_ = f.app.err.Println(term.Dim("serving; try 'envctl --server " + url + " run \"Say hello\"'; Ctrl-C ends it"))
	_, err := fmt.Fprintln(f.app.out, url)
	return err
}

// open begins to listen.
func (f *serveFlags) open(ctx context.Context) (l net.Listener, url string, err error) {
	var pair tls.Certificate
	switch {
	case (f.cert == "") != (f.key == ""):
		return nil, "", usagef("--tls-cert and --tls-key belong together; give both")
	case f.cert != "":
		if pair, err = tls.LoadX509KeyPair(f.cert, f.key); err != nil {
			return nil, "", usagef("--tls-cert: %w", err)
		}
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, "", usagef("--listen: %q is no address; give HOST:PORT, such as 127.0.0.1:8377", f.listen)
	}
	if addr, perr := netip.ParseAddr(host); f.cert == "" && host != "localhost" && (perr != nil || !addr.IsLoopback()) {
		_ = f.app.err.Println(term.Plain("warn: without --tls-cert others on the network can read the token and what the agents do"))
	}
	if l, err = new(net.ListenConfig).Listen(ctx, "tcp", f.listen); err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w; another server may run there: --listen chooses another address", f.listen, err)
	}
	url = "http://" + l.Addr().String()
	if f.cert != "" {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		url = "https://" + l.Addr().String()
	}
	return l, url, nil
}

// token returns the token of the server at url: that of --token-file, or a new one that other commands of this user find until
// remove is called.
func (f *serveFlags) token(url string) (token string, remove func() error, err error) {
	if f.tokenFile != "" {
		data, err := statedir.ReadPrivate(f.tokenFile, servertoken.Max)
		if err != nil {
			return "", nil, usagef("--token-file: %w", err)
		}
		if token = strings.TrimSpace(string(data)); len(token) < 16 {
			return "", nil, usagef("--token-file: %s has a token of %d bytes; make one of at least 16, as with 'openssl rand -hex 32'", f.tokenFile, len(token))
		}
		return token, func() error { return nil }, nil
	}
	return servertoken.New(url)
}
