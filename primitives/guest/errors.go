package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// VersionError reports that both ends speak the guest protocol, but different versions of it.
// Install the guest that belongs to this program.
type VersionError struct {
	Ours, Theirs int
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("guest protocol version mismatch: this side speaks %d, the other %d; use the release of agentenv that made the sandbox", e.Ours, e.Theirs)
}

// HandshakeError reports that the other end of the stream is not a guest, or a guest that this
// host cannot talk to. Err is a [*VersionError], wraps os.ErrDeadlineExceeded if the other end
// was silent or too slow, or wraps io.ErrUnexpectedEOF if the stream ended. The error always
// wraps primitives.ErrUnavailable, too.
type HandshakeError struct {
	// Output is what the other end sent before or instead of a handshake, cut to a length that
	// fits a message. It usually shows the cause.
	Output string
	// Stderr is the end of the standard error of the stream, if the stream has one. See
	// [Driver].Dial.
	Stderr string
	Err    error
}

// Error quotes what the other end sent.
func (e *HandshakeError) Error() string {
	said := "guest handshake: " + e.Err.Error()
	if e.Output != "" {
		said += fmt.Sprintf("; the other end sent %q", e.Output)
	}
	if e.Stderr != "" {
		said += "; the guest wrote: " + e.Stderr
	}
	return said
}

// Unwrap returns the cause and primitives.ErrUnavailable, or a [*primitives.SettingError] if the guest wrote
// that its workspace cannot be at the path of the configuration.
func (e *HandshakeError) Unwrap() []error {
	const setting = "workspace_path"
	if _, problem, ok := strings.Cut(e.Stderr, setting+": "); ok {
		problem, _, _ = strings.Cut(problem, "\n")
		return []error{&primitives.SettingError{Setting: setting, Problem: problem, Err: fs.ErrInvalid}}
	}
	return []error{e.Err, primitives.ErrUnavailable}
}

// errCode stands for a sentinel on the wire. Codes are part of the protocol:
// never renumber one.
type errCode uint8

// sentinel pairs a code with the error that it stands for.
type sentinel struct {
	code errCode
	err  error
}

// sentinels returns every error that keeps its identity across the stream.
func sentinels() [27]sentinel {
	return [...]sentinel{
		{1, primitives.ErrTerminated},
		{2, primitives.ErrUnavailable},
		{3, primitives.ErrPathEscape},
		{4, primitives.ErrWorkingDir},
		{5, primitives.ErrCommandNotFound},
		{6, primitives.ErrUnknownUser},
		{7, primitives.ErrIsDirectory},
		{8, primitives.ErrNotDirectory},
		{9, primitives.ErrNotEmpty},
		{10, primitives.ErrNotRegular},
		{11, primitives.ErrNoSpace},
		{12, primitives.ErrConflict},
		{13, primitives.ErrLimit},
		{32, fs.ErrNotExist},
		{33, fs.ErrExist},
		{34, fs.ErrPermission},
		{35, fs.ErrInvalid},
		{36, fs.ErrClosed},
		{37, os.ErrProcessDone},
		{38, os.ErrDeadlineExceeded},
		{39, errors.ErrUnsupported},
		{40, context.Canceled},
		{41, context.DeadlineExceeded},
		{42, io.ErrUnexpectedEOF},
		{43, syscall.ECONNREFUSED},
		{44, syscall.EADDRINUSE},
		{45, syscall.ECONNRESET},
	}
}

// maxErrorText is how much of an error's text goes over the wire.
const maxErrorText = 16 << 10

// wireError is an error on the wire.
type wireError struct {
	Text  string
	Codes []errCode
	// Where is the outermost primitives.Error of the chain, if there is one.
	Where *wireWhere
}

// wireWhere is a primitives.Error on the wire.
type wireWhere struct {
	Op, Backend, Target string
	Text                string // of the error that it wraps
}

func (w *wireError) code(c *codec) {
	codeString(c, &w.Text)
	codeSlice(c, &w.Codes, codeUint[errCode])
	codeOptional(c, &w.Where, func(c *codec, v *wireWhere) {
		codeString(c, &v.Op)
		codeString(c, &v.Backend)
		codeString(c, &v.Target)
		codeString(c, &v.Text)
	})
}

// toWire describes err, which is not nil.
func toWire(err error) *wireError {
	w := &wireError{Text: clip(err.Error(), maxErrorText)}
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			w.Codes = append(w.Codes, s.code)
		}
	}
	if where, ok := errors.AsType[*primitives.Error](err); ok {
		w.Where = &wireWhere{
			Op: where.Op, Backend: where.Backend, Target: clip(where.Target, maxErrorText),
			Text: clip(where.Err.Error(), maxErrorText),
		}
		if where.Error() == err.Error() { // nothing was wrapped around it
			w.Text = ""
		}
	}
	return w
}

func clip(s string, most int) string { return s[:min(len(s), most)] }

// fromWire rebuilds an error. The caller may keep it: it holds no more than toWire puts into
// one. If backend is not empty, it replaces the backend that the other side named: the caller
// knows the sandbox by that name.
func fromWire(w *wireError, backend string) error {
	var causes []error
	for _, s := range sentinels() {
		if slices.Contains(w.Codes, s.code) {
			causes = append(causes, s.err)
		}
	}
	kept := func(s string) string { return strings.Clone(clip(s, maxErrorText)) }
	text := kept(w.Text)
	if w.Where == nil {
		return &remoteError{text: text, causes: causes}
	}
	where := &primitives.Error{
		Op: kept(w.Where.Op), Backend: kept(w.Where.Backend), Target: kept(w.Where.Target),
		Err: &remoteError{text: kept(w.Where.Text), causes: causes},
	}
	if backend != "" {
		where.Backend = backend
	}
	if text == "" {
		return where
	}
	return &remoteError{text: text, causes: []error{where}}
}

// remoteError is an error that happened on the other side: its text, and the
// sentinels that were in its chain.
type remoteError struct {
	text   string
	causes []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.causes }
