package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/agentenv-dev/agentenv/gateway/internal/replay"
	"github.com/agentenv-dev/agentenv/internal/output"
	"github.com/agentenv-dev/agentenv/internal/secret"
)

// NoMatchError is a model call that is not in the recording.
type NoMatchError = replay.NoMatchError

// OpenRecord opens a file for [Config.Record]: a new one of mode 0600, or a recording, which is
// added to and gets that mode. It follows no symbolic link at the end of name, and adds to no
// other file: a sandbox may have put something else there. Errors are [ErrConfig].
func OpenRecord(name string) (_ *os.File, err error) {
	f, err := output.Open(name, os.O_RDWR|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err = replay.CheckAppend(io.NewSectionReader(f, 0, math.MaxInt64)); err == nil {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrConfig, name, err), f.Close())
	}
	return f, nil
}

// openReplay opens the recorder or the player.
func (g *Gateway) openReplay() (err error) {
	switch {
	case g.cfg.Record != nil && g.cfg.Replay != nil:
		return fmt.Errorf("%w: a session is recorded or replayed, not both", ErrConfig)
	case g.cfg.Replay != nil:
		if g.player, err = replay.Open(g.cfg.Replay, g.cfg.Places); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		g.cfg.Upstreams = map[string]Upstream{}
		for api := range makers() {
			g.cfg.Upstreams[string(api)] = Upstream{API: api, Key: "replayed"}
		}
	case g.cfg.Record != nil:
		secrets := []string{g.cfg.Token}
		for _, up := range g.cfg.Upstreams {
			if len(up.Key) >= secret.Shortest {
				secrets = append(secrets, up.Key)
			}
		}
		if g.recorder, err = replay.NewRecorder(g.cfg.Record, g.cfg.Places, secrets); err != nil {
			return fmt.Errorf("record the session: %w", err)
		}
	}
	return nil
}

// formOf returns the form of a call, when it is its turn.
func (g *Gateway) formOf(ctx context.Context, body []byte, of func([]byte) string) (form string, err error) {
	err = g.share.read(ctx, len(body), func(context.Context) error {
		form = of(body)
		return nil
	})
	return form, err
}

// sender returns the function that sends calls to an upstream's API or answers them from a
// recording.
func (g *Gateway) sender(name string, up Upstream, base *url.URL) replay.Send {
	return func(r *http.Request) (*http.Response, error) {
		var body []byte
		if call, ok := r.Context().Value(modelCallKey{}).(*modelCall); ok {
			body = call.Body
		}
		path := strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(base.Path, "/"))
		if g.player == nil && g.cfg.OnKey != nil {
			g.cfg.OnKey(name, r.Method, path)
		}
		switch {
		case g.player != nil:
			form, err := g.formOf(r.Context(), body, g.player.Form)
			if err != nil {
				return nil, err
			}
			resp, err := g.player.Send(up.API, path, form, r)
			if _, missing := errors.AsType[*NoMatchError](err); missing {
				g.cfg.Meter.end(err)
			}
			return resp, err
		case g.recorder != nil:
			form, err := g.formOf(r.Context(), body, g.recorder.Form)
			if err != nil {
				return nil, err
			}
			return g.recorder.Send(up.API, path, form, r, g.send)
		}
		return g.send(r)
	}
}
