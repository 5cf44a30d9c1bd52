package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/servertoken"
	"github.com/agentenv-dev/agentenv/primitives"
)

// ErrUnauthorized says that the server does not accept the token.
var ErrUnauthorized = apierror.ErrUnauthorized

// codes are the kinds of errors that a server has for sandboxes.
var codes = append(apierror.Common(), apierror.Code{Name: "invalid_config", Status: http.StatusBadRequest, Err: fs.ErrInvalid})

const (
	// callTimeout is how long the server may take to answer, but where it makes or ends sandboxes: that may build an image, or
	// wait for commands.
	callTimeout = time.Minute
	// maxAnswer limits an answer, in bytes.
	maxAnswer = 64 << 20
)

// transport keeps no connections, so that nothing remains of a call. A WebSocket needs HTTP/1.1.
var transport = sync.OnceValue(func() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport // the program's own
	}
	t = t.Clone()
	t.DisableKeepAlives = true
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return t
})

func (p Provider) client() *http.Client {
	client := http.Client{Transport: transport()}
	if p.Client != nil {
		client = *p.Client
	}
	// A server does not redirect. To follow would send the token elsewhere.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// bounded limits a request to callTimeout.
func (p Provider) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("%w: %s does not answer", primitives.ErrUnavailable, p.where()))
}

// address returns the address of a path.
func (p Provider) address(path string) string {
	at := strings.TrimSuffix(p.Server, "/") + path
	if p.Sandbox != "" {
		at += "?type=" + url.QueryEscape(p.Sandbox)
	}
	return at
}

// header returns the header of every request.
func (p Provider) header() (http.Header, error) {
	token := p.Token
	if token == "" {
		var err error
		if token, err = servertoken.Find(p.Server); err != nil {
			return nil, fmt.Errorf("find the token of %s: %w", p.where(), err)
		}
	}
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return header, nil
}

// call makes a request and decodes the answer. in and out may be nil.
func (p Provider) call(ctx context.Context, method, path string, in, out any) error {
	if method != http.MethodDelete && (method != http.MethodPost || in == nil) {
		var cancel context.CancelFunc
		ctx, cancel = p.bounded(ctx)
		defer cancel()
	}
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.address(path), body)
	if err != nil {
		return err
	}
	if req.Header, err = p.header(); err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := p.client().Do(req)
	if err != nil {
		return p.unreachable(ctx, err)
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	if res.StatusCode >= 300 {
		return answered(res)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(out); err != nil {
		return p.unreachable(ctx, fmt.Errorf("its answer cannot be read: %w", err))
	}
	return nil
}

// unreachable returns the error for a request without an answer.
func (p Provider) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: the server cannot be reached: %w", primitives.ErrUnavailable, err)
}

// answered returns the error that an answer is.
func answered(res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var said apierror.Body
	if err == nil && json.Unmarshal(data, &said) == nil && said.Error.Code != "" {
		err = codes.Err(said.Error)
		if errors.Is(err, ErrUnauthorized) {
			err = fmt.Errorf("%w; set %s to a token of 'envctl serve' or 'envctl serve token add'", err, servertoken.Variable)
		}
		return err
	}
	return errors.Join(err, fmt.Errorf("%w: %s is no answer of an agentenv server", primitives.ErrUnavailable, res.Status))
}
