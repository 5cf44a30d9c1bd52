package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// api is a client of a server, which may belong to another process.
type api struct {
	base     string
	password string
	client   *http.Client
}

func newAPI(base, password string) *api {
	// The server is on this machine: bypass the environment's proxies.
	return &api{base: base, password: password, client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

// forget closes the idle connections.
func (a *api) forget() { a.client.CloseIdleConnections() }

// statusError is an error response of the server.
type statusError struct {
	status  int
	message string
}

func (r *statusError) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.message) }

// hasStatus reports whether err is a response of the server with that status.
func hasStatus(err error, status int) bool {
	r, ok := errors.AsType[*statusError](err)
	return ok && r.status == status
}

// maxReply limits a response, in bytes. It is far above the size of a whole conversation.
const maxReply = 1 << 30

// request sends a request. The caller closes the body of the response.
func (a *api) request(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(serverUser, a.password)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		// Unwrap: the text of a url.Error has the address, which means nothing to a user.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, fmt.Errorf("ask OpenCode's server for %s: %w", path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return nil, errors.Join(&statusError{status: resp.StatusCode, message: strings.ToValidUTF8(string(said), "\uFFFD")}, err)
}

// call sends a request and decodes the reply into out, which may be nil.
func (a *api) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := a.request(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("read what OpenCode's server says to %s: %w", path, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return agent.Failed("install the version of OpenCode that this runner was tested with (%s): it answers %s with something else: %v",
			testedVersion, path, err)
	}
	return nil
}

func (a *api) get(ctx context.Context, path string, out any) error {
	return a.call(ctx, http.MethodGet, path, nil, out)
}

func (a *api) post(ctx context.Context, path string, in, out any) error {
	if in == nil {
		in = struct{}{}
	}
	return a.call(ctx, http.MethodPost, path, in, out)
}

// stream is the server's stream of events.
type stream struct {
	body  io.ReadCloser
	lines *runnerscripts.LineReader
}

// events subscribes to the events. It misses no event after it returns.
func (a *api) events(ctx context.Context, path string) (*stream, error) {
	resp, err := a.request(ctx, http.MethodGet, path, nil) //nolint:bodyclose // the reader of the stream closes it
	if err != nil {
		return nil, err
	}
	st := &stream{body: resp.Body, lines: runnerscripts.NewLineReader(resp.Body, 0)}
	if _, err := st.next(); err != nil { // "server.connected"
		return nil, errors.Join(fmt.Errorf("listen to OpenCode's server: %w", err), st.body.Close())
	}
	return st, nil
}

// next returns the JSON of the next event, valid until the one after it.
func (st *stream) next() ([]byte, error) {
	for {
		line, err := st.lines.Next()
		if err != nil {
			return nil, err
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			return bytes.TrimSpace(data), nil
		}
	}
}

// abort stops the work of a session.
func (a *api) abort(ctx context.Context, id string) error {
	return a.post(ctx, "/session/"+id+"/abort", nil, nil)
}

// messages reads the last most messages of a session, oldest first; 0 means all.
func (a *api) messages(ctx context.Context, id string, most int) ([]message, error) {
	path := "/session/" + id + "/message"
	if most > 0 {
		path += "?limit=" + strconv.Itoa(most)
	}
	var list []message
	return list, a.get(ctx, path, &list)
}

// turn reads a user message and everything that followed from it: the program may continue with
// user messages that it creates itself.
func (a *api) turn(ctx context.Context, id, userID string) ([]message, error) {
	const usual = 100
	for _, most := range []int{usual, 0} {
		all, err := a.messages(ctx, id, most)
		if err != nil {
			return nil, err
		}
		found := slices.IndexFunc(all, func(m message) bool { return m.Info.ID == userID })
		if found < 0 {
			continue
		}
		return all[found:], nil
	}
	return nil, &statusError{status: http.StatusNotFound, message: "the message of the prompt is not in the session"}
}

// sinceTime returns the messages created at ms or later, in milliseconds since 1970.
func sinceTime(messages []message, ms int64) []message {
	return slices.DeleteFunc(messages, func(m message) bool { return m.Info.Time.Created < ms })
}
