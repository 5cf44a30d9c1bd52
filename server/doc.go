// Package server serves sessions and sandboxes over HTTP: packages session/remote and primitives/remote are its clients, 'envctl serve' a program around it, and
// docs/server.md describes the interface for clients in other languages.
//
//	host, err := session.NewHost(session.HostConfig{Store: st, Session: server.Sessions(logger)})
//	...
//	srv, err := server.New(server.Config{Host: host, Token: token, Logger: logger})
//	...
//	err = srv.Serve(ctx, listener) // until ctx is done
//	err = errors.Join(err, host.Shutdown(context.WithoutCancel(ctx)))
//
// Where to look: server.go has the server and what every request passes; routes.go lists the routes, which sessions.go,
// workspace.go and wire.go answer; events.go streams; decode.go reads bodies and openapi.go describes them, both by the same schemas;
// once.go makes each change once; defaults.go completes configurations. access.go has the roles of callers, and the table of
// what each may do. sandboxes.go answers the routes of sandboxes, and boxes.go decides when one without clients ends.
package server
