package docker_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// otherClock is a proxy to the engine that simulates a clock other than this machine's.
type otherClock struct {
	t       *testing.T
	ahead   time.Duration
	literal bool // it takes 0 for the year 1970, not for no limit
}

// serve returns the address of the proxy, which listens until the test ends.
func (c otherClock) serve() string {
	c.t.Helper()
	return standIn(c.t, toEngine(c.t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if strings.HasSuffix(r.Out.URL.Path, "/events") {
				query := r.Out.URL.Query()
				query.Set("until", c.until(query.Get("until")))
				r.Out.URL.RawQuery = query.Encode()
			}
		},
		ModifyResponse: c.answer,
		FlushInterval:  -1,
	}))
}

// until translates the limit of a list of events to the clock of the real engine. The limit must be
// in the past: the engine waits for a time in the future.
func (c otherClock) until(limit string) string {
	if limit == "0" && !c.literal {
		return limit
	}
	whole, part, _ := strings.Cut(limit, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	nanoseconds, perr := strconv.ParseInt((part + "000000000")[:9], 10, 64)
	if err := errors.Join(err, perr); err != nil {
		c.t.Errorf("a limit of events: %v", err)
	}
	at := time.Unix(max(seconds, 86400), nanoseconds).Add(-c.ahead) // no day before 1970, and not 0
	if wait := time.Until(at); wait > 0 {
		c.t.Errorf("the engine is asked to wait for %v", wait)
		at = time.Now()
	}
	return fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond())
}

// answer moves the times in answers, except those of events.
func (c otherClock) answer(r *http.Response) error {
	if at, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		r.Header.Set("Date", at.Add(c.ahead).Format(http.TimeFormat))
	}
	if !strings.HasSuffix(r.Request.URL.Path, "/info") {
		return nil
	}
	var info map[string]any
	err := json.NewDecoder(r.Body).Decode(&info)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return err
	}
	info["SystemTime"] = time.Now().Add(c.ahead).Format(time.RFC3339Nano)
	b, err := json.Marshal(info)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	r.Header.Set("Content-Length", strconv.Itoa(len(b)))
	return err
}

func TestAnEngineWithAnotherClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, -15 * time.Second, 10 * time.Second, time.Hour} {
		for _, literal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v ahead, literal %v", ahead, literal), func(t *testing.T) {
				t.Parallel()
				host := otherClock{t, ahead, literal}.serve()
				terminatedElsewhere(t, host)
				killedElsewhere(t, host)
			})
		}
	}
}

// terminatedElsewhere terminates a sandbox through one handle and checks another handle, whose
// engine is at host.
func terminatedElsewhere(t *testing.T, host string) {
	t.Helper()
	cfg := config(t, testdocker.Busybox(t))
	s := open(t, cfg)
	cfg.Host = host
	other, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("terminated elsewhere: %v", err)
	}
	if state, err := other.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("terminated elsewhere: %+v, %v", state, err)
	}
	history, err := cfg.History(t.Context(), s.ID())
	if err != nil || !slices.ContainsFunc(history, func(i primitives.Incident) bool { return strings.HasPrefix(i.Message, "terminated by") }) {
		t.Errorf("terminated elsewhere: %+v, %v", history, err)
	}
}

// killedElsewhere kills and removes the container of a sandbox, on an engine at host.
func killedElsewhere(t *testing.T, host string) {
	t.Helper()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host = host
	s := open(t, cfg)
	endNow(t, testdocker.Engine(t), s.ID())
	if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) || !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("killed: %v", err)
	}
	state, err := s.Poll(t.Context())
	if err != nil || state.Status != primitives.StatusExited || state.Exit.Signal != primitives.SIGKILL {
		t.Errorf("killed: %+v, %v", state, err)
	}
}
