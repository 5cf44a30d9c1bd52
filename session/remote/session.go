package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Session is a session on a server. Its methods do what those of session.AgentSession do, and may be called from several
// goroutines at once. It holds nothing: the server closes sessions that nobody uses, and opens them again.
type Session struct {
	client *Client
	id     string
}

// ID returns the session's ID.
func (s *Session) ID() string { return s.id }

func (s *Session) path(below ...string) string { return sessionapi.SessionPath(s.id, below...) }

// State returns the state of the session.
func (s *Session) State(ctx context.Context) (session.State, error) {
	var state session.State
	err := s.client.get(ctx, s.path(), nil, &state)
	return state, err
}

// Interrupt stops the running query.
func (s *Session) Interrupt(ctx context.Context) error {
	return s.client.change(ctx, http.MethodPost, s.path("interrupt"), nil, nil)
}

// Respond answers a permission request.
func (s *Session) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	return s.client.change(ctx, http.MethodPost, s.path("permissions", id), d, nil)
}

// SetOptions changes the model or the permission mode.
func (s *Session) SetOptions(ctx context.Context, o session.Options) error {
	return s.client.change(ctx, http.MethodPatch, s.path("options"), o, nil)
}

// Files returns the files of the workspace.
func (s *Session) Files(ctx context.Context, opts environment.FilesOptions) ([]environment.WorkspaceFile, error) {
	var list sessionapi.Files
	err := s.client.get(ctx, s.path("files"), filesQuery(opts), &list)
	return list.Files, err
}

// OpenFile reads a file of the sandbox. The caller closes the reader. A connection that breaks after the first mebibyte is an
// error of its Read.
func (s *Session) OpenFile(ctx context.Context, name string) (io.ReadCloser, error) {
	return s.download(ctx, s.path("file"), url.Values{"path": {name}})
}

// atOnce is how many bytes of a body are read at once, and again if the connection breaks meanwhile.
const atOnce = 1 << 20

// download begins to read a body.
func (s *Session) download(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	var d downloaded
	err := s.client.retry(ctx, func() error {
		res, err := s.client.send(ctx, request{method: http.MethodGet, path: path, query: query})
		if err != nil {
			return err
		}
		begin, err := io.ReadAll(io.LimitReader(res.Body, atOnce))
		if err != nil {
			return &broken{errors.Join(err, res.Body.Close())}
		}
		d = downloaded{io.MultiReader(bytes.NewReader(begin), res.Body), res.Body}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// downloaded is a body whose beginning was read.
type downloaded struct {
	io.Reader
	io.Closer
}

// WriteFile writes a file of the sandbox. It is not sent again if the connection breaks.
func (s *Session) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	q := url.Values{"path": {name}}
	for key, set := range map[string]bool{"append": opts.Append, "exclusive": opts.Exclusive} {
		if set {
			q.Set(key, "true")
		}
	}
	if opts.Mode != 0 {
		q.Set("mode", "0"+strconv.FormatUint(uint64(opts.Mode.Perm()), 8))
	}
	if opts.IfRevision != "" {
		q.Set("if_revision", opts.IfRevision)
	}
	return s.upload(ctx, s.path("file"), q, "application/octet-stream", r)
}

// upload sends a body, once.
func (s *Session) upload(ctx context.Context, path string, query url.Values, media string, r io.Reader) error {
	err := s.put(ctx, path, query, media, r)
	if _, failed := errors.AsType[*broken](err); failed {
		return unreachable(err)
	}
	return err
}

// body is what a request sends. After Close nothing reads from r, although the transport may still try.
type body struct {
	mu     sync.Mutex
	r      io.Reader
	closed bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, fs.ErrClosed
	}
	return b.r.Read(p)
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// put sends a body. The error is [*broken] if the connection failed.
func (s *Session) put(ctx context.Context, path string, query url.Values, media string, r io.Reader) error {
	body := &body{r: r}
	defer func() { _ = body.Close() }() // it never fails
	req, err := s.client.request(ctx, http.MethodPut, path, query, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", media)
	res, err := s.client.do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Sync takes a checkpoint now and returns it.
func (s *Session) Sync(ctx context.Context) (session.Checkpoint, error) {
	var c session.Checkpoint
	err := s.client.change(ctx, http.MethodPost, s.path("checkpoints"), nil, &c)
	return c, err
}

// Changes returns what has changed in the workspace from one checkpoint to another.
func (s *Session) Changes(ctx context.Context, from, to int) ([]environment.Change, error) {
	var list sessionapi.Changes
	err := s.client.get(ctx, s.path("changes"), span(from, to), &list)
	return list.Changes, err
}

// WriteWorkspace makes the files of a tar archive those that a new session begins with. If the connection breaks it is sent again,
// from where the reader began, if that is an io.Seeker.
func (s *Session) WriteWorkspace(ctx context.Context, r io.Reader) error {
	const media = "application/x-tar"
	again, ok := r.(io.Seeker)
	if !ok {
		return s.upload(ctx, s.path("workspace"), nil, media, r)
	}
	begin, err := again.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	return s.client.retry(ctx, func() error {
		if _, err := again.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		return s.put(ctx, s.path("workspace"), nil, media, r)
	})
}

// ReadWorkspace writes the files of a checkpoint to w as a tar archive, see session.ReadWorkspace.
func (s *Session) ReadWorkspace(ctx context.Context, w io.Writer, from, to int) error {
	return s.copyTo(ctx, w, "workspace", span(from, to))
}

// Patch writes the changes from one checkpoint to another as a patch for "git apply".
func (s *Session) Patch(ctx context.Context, w io.Writer, from, to int) error {
	return s.copyTo(ctx, w, "patch", span(from, to))
}

// copyTo copies what is at a path below the session.
func (s *Session) copyTo(ctx context.Context, w io.Writer, what string, query url.Values) error {
	body, err := s.download(ctx, s.path(what), query)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, body)
	if err = errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("the %s from the server is cut off: %w", what, err)
	}
	return nil
}

func span(from, to int) url.Values {
	return url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
}

// Rewind returns the conversation and the workspace to a checkpoint.
func (s *Session) Rewind(ctx context.Context, number int) error {
	return s.client.change(ctx, http.MethodPost, s.path("rewind"), sessionapi.Rewind{Checkpoint: number}, nil)
}

// Fork creates n sessions with the current conversation and workspace of this session.
func (s *Session) Fork(ctx context.Context, n int) ([]*Session, error) {
	return s.fork(ctx, sessionapi.Fork{N: n})
}

// ForkFrom is like Fork, but the new sessions start from a checkpoint.
func (s *Session) ForkFrom(ctx context.Context, number, n int) ([]*Session, error) {
	return s.fork(ctx, sessionapi.Fork{N: n, Checkpoint: &number})
}

func (s *Session) fork(ctx context.Context, body sessionapi.Fork) ([]*Session, error) {
	var made sessionapi.Forks
	if err := s.client.change(ctx, http.MethodPost, s.path("fork"), body, &made); err != nil {
		return nil, err
	}
	var forks []*Session
	for _, id := range made.IDs {
		forks = append(forks, s.client.Session(id))
	}
	return forks, nil
}

// Transcript returns the agent's own history of the conversation.
func (s *Session) Transcript(ctx context.Context) (runnerscripts.Transcript, error) {
	var t runnerscripts.Transcript
	err := s.client.get(ctx, s.path("transcript"), nil, &t)
	return t, err
}

// TerminateEnvironment ends the sandbox. The next prompt makes a new one.
func (s *Session) TerminateEnvironment(ctx context.Context) error {
	return s.client.change(ctx, http.MethodDelete, s.path("environment"), nil, nil)
}

// Destroy ends the sandbox and removes the session. It may be called more than once.
func (s *Session) Destroy(ctx context.Context) error {
	err := s.client.change(ctx, http.MethodDelete, s.path(), nil, nil)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
