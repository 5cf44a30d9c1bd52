package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// portFlags are the flags of port.
type portFlags struct {
	target
	listen string
}

func (a *app) newPortCmd() *cobra.Command {
	f := &portFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "port [flags] ID PORT",
		Short: "Reach a port of a sandbox from this machine",
		Long: `Listen on this machine and carry each connection to what listens on PORT inside the
sandbox, over the way that envctl itself has to it: the sandbox needs no network and
no published port. It goes on until Ctrl-C, or until a connection finds the sandbox
ended. A server there may listen on 127.0.0.1 or on ::1.

Every program that can connect to the address of --listen reaches the port: on 127.0.0.1, the
default with PORT, that is every user of this machine, and web pages in a browser. At
unix:PATH it is you alone. Port 0 takes a free one, which is printed.`,
		Example: `  envctl port 3f2a 8080
  envctl port 3f2a 5173 --listen 127.0.0.1:0
  envctl port 3f2a 8080 --listen unix:web.sock`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usagef("%q is not a port; give a number from 1 to 65535", args[1])
			}
			return f.run(cmd.Context(), args[0], int(port))
		},
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	cmd.Flags().StringVar(&f.listen, "listen", "", "address of this machine to listen on, or unix:PATH (default 127.0.0.1:PORT)")
	return cmd
}

func (f *portFlags) run(ctx context.Context, id string, port int) (err error) {
	address := f.listen
	if address == "" {
		address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	env, err := f.attach(ctx, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if !env.Primitive().Capabilities().Forward {
		return fmt.Errorf("sandbox %s carries no connections: %w", env.ID(), errors.ErrUnsupported)
	}
	ln, err := listen(ctx, address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; choose another address with --listen, such as --listen 127.0.0.1:0, or remove a socket that a killed envctl has left", err)
	}
	if err != nil {
		return usagef("--listen: %v", err)
	}
	f.app.status.Off()
	fmt.Fprintf(f.app.out, "%s -> port %d of %s\n", ln.Addr(), port, env.ID())
	return f.serve(ctx, ln, env, port)
}

// listen listens at host:port or, for the user alone, at unix:PATH.
func listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		network, address = "unix", path
		defer syscall.Umask(syscall.Umask(0o077)) // who may write to the socket may connect
	}
	return (&net.ListenConfig{}).Listen(ctx, network, address)
}

// serve forwards connections until ctx is done or a connection finds that the sandbox has ended.
func (f *portFlags) serve(ctx context.Context, ln net.Listener, env *environment.Environment, port int) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var refused sync.Once
	for {
		outer, err := ln.Accept()
		if cause := context.Cause(ctx); cause != nil {
			if err == nil {
				_ = outer.Close()
			}
			return cause
		}
		if err != nil {
			end(err) // ends the connections, too
			return errors.Join(err, ln.Close())
		}
		conns.Go(func() {
			inner, err := dialPort(ctx, env.Primitive(), port)
			switch {
			case err == nil:
				join(ctx, outer, inner)
				return
			case errors.Is(err, syscall.ECONNREFUSED):
				refused.Do(func() { fmt.Fprintf(f.app.err, "warn: nothing listens on port %d of the sandbox (yet)\n", port) })
			case ctx.Err() != nil:
			case env.Healthy(ctx) != nil:
				end(adviseSandbox(env.ID(), err))
			default:
				fmt.Fprintf(f.app.err, "warn: %v\n", err)
			}
			abort(outer)
		})
	}
}

// dialPort connects to a port of a sandbox, on 127.0.0.1 or else on ::1.
func dialPort(ctx context.Context, p primitives.EnvironmentPrimitive, port int) (net.Conn, error) {
	c, err := primitives.Dial(ctx, p, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.ECONNREFUSED) {
		if six, serr := primitives.Dial(ctx, p, "tcp", net.JoinHostPort("::1", strconv.Itoa(port))); serr == nil {
			return six, nil
		}
	}
	return c, err
}

// join copies bytes in both directions until both streams have ended, and closes both
// connections.
func join(ctx context.Context, a, b net.Conn) {
	defer context.AfterFunc(ctx, func() { abort(a); abort(b) })()
	var both sync.WaitGroup
	carry := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err == nil && ok && half.CloseWrite() == nil {
			return
		}
		// One connection is broken: the other must not take that for EOF.
		abort(a)
		abort(b)
	}
	both.Go(func() { carry(a, b) })
	both.Go(func() { carry(b, a) })
	both.Wait()
	_, _ = a.Close(), b.Close()
}

// abort closes a connection so that the other end sees that it is broken.
func abort(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
