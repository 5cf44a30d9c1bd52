// Package guest serves an EnvironmentPrimitive over a byte stream and dials it
// from the other end. Remote backends use it: a [Sandbox] is a sandbox that a guest
// serves, whole and portable, over a small [Driver] that each backend writes.
//
// # A backend
//
// A backend starts the runner's guest where its sandbox is:
//
//	envrunner guest --root FOLDER [--workspace FOLDER] [--user USER] [--env KEY=value]
//
// Its [Driver] returns the standard streams of that program as one stream, see [Stdio], reports
// the state of the sandbox and ends it. [Open] does the rest. The sandbox is a new one below
// the root and ends with the stream, unless --stay or --linger is given; --attach ID serves it
// again. "envrunner guest --help" explains all flags, and bundle.Path finds the program for a
// platform. docs/new-backend.md walks through package ssh; examples/unshared is a whole backend
// with its test.
//
// # Protocol
//
// The guest speaks first: a magic, a protocol version and a hello that describes the sandbox.
// Bytes before the magic, such as a login banner, are kept for the error message and otherwise
// ignored. The host answers with its own magic, version and hello. After that the byte stream
// carries yamux streams, all opened by the host.
//
// One operation is one stream: a request, then frames, see wire.go. Everything
// is encoded by hand-written field lists (messages.go) rather than JSON, because
// paths, arguments and environment may hold any bytes and JSON only holds valid
// UTF-8. A command's standard input, output and error are streams of their own,
// opened when they are first used, so that none of them waits for another.
//
// Half-closing a stream abandons the operation: the guest cancels its context.
// Data that ends without an end frame was cut off and is never taken as whole.
//
// If host and guest share a Unix socket on Linux, the host passes pipes to the guest over it.
// All of a file or an archive after its first frame then goes through such a pipe, and so does
// the output of a command that has no terminal and is not durable. Otherwise the data stays in
// frames. See sendAll in bulk.go and newPipes in client_output.go.
//
// # The peer is not trusted
//
// Lengths are checked before anything is allocated. A guest cannot open streams
// to its host. The number of streams, the size of a frame and the rate of pings
// are limited below yamux (transport.go), which itself limits none of them.
//
// # Where to look
//
// handshake.go agrees on the protocol, socket.go moves to a Unix socket; wire.go and
// messages.go encode; streams.go and transport.go carry streams, keep-alives and limits;
// bulk.go carries large content. client.go opens a connection, call.go makes one call and
// the other client_*.go its kinds; server.go and server_*.go answer them. sandbox.go is what
// a Driver adds: state, end, snapshots, pauses, copies. errors.go carries errors across.
package guest
