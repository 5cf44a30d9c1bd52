package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// orphanIn names the environment variable with the folder in which this program creates a
// sandbox and dies.
const orphanIn = "SESSION_TEST_ORPHAN_IN"

// leaveOrphan creates a sandbox, prints its ID and dies.
func leaveOrphan(root string) {
	s, err := local.New(context.Background(), local.Config{Root: root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.ID())
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// records collects log records as JSON lines.
type records struct {
	more chan struct{} // gets a value when there are more; nil if nothing waits for that
	mu   sync.Mutex
	buf  bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return r.buf.Write(p)
}

func (r *records) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// find returns the first record with this message.
func (r *records) find(t *testing.T, message string) map[string]any {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(r.text()))
	for lines.Scan() {
		var record map[string]any
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			t.Fatalf("record %q: %v", lines.Text(), err)
		}
		if record["@message"] == message {
			return record
		}
	}
	return nil
}

// await waits for a record with this message.
func (r *records) await(t *testing.T, message string) {
	t.Helper()
	for r.find(t, message) == nil {
		<-r.more
	}
}

// busyEngine returns the address of the real engine behind a proxy that once fails to
// pause a container, as an engine with a busy container does.
func busyEngine(t *testing.T) string {
	t.Helper()
	socket, ok := strings.CutPrefix(testdocker.Engine(t).DaemonHost(), "unix://")
	if !ok {
		t.Fatal("the engine is not behind a Unix socket")
	}
	through := &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		ErrorLog: log.New(io.Discard, "", 0), // discards errors about cancelled requests
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}
	var failed atomic.Bool
	dir, err := os.MkdirTemp("", "ae") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pause") && failed.CompareAndSwap(false, true) {
			http.Error(w, `{"message":"unable to freeze"}`, http.StatusInternalServerError)
			return
		}
		through.ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return "unix://" + l.Addr().String()
}

// TestEventsAreLogged checks the log records that an operator reads: the message, its level and
// its keys.
func TestEventsAreLogged(t *testing.T) {
	t.Parallel()
	const secret = "hush-hush-0123"
	written := records{more: make(chan struct{}, 1)}
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &written, JSONFormat: true})
	retry, err := json.Marshal(runnerscripts.Log{Level: "warn", Message: "the model's API failed with " + secret + "; try 1 of 10 follows"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := scripted(t, steps(
		runnerscripts.ScenarioStep{Print: json.RawMessage(`{"type":"log","payload":` + string(retry) + `}`)},
		ask(write("f", "yes"))), steps(say("again")))
	cfg.Environment.Logger = logger
	cfg.Environment.Agent.Env = map[string]string{"API_KEY": secret}
	cfg.Environment.Sandbox = environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Host: busyEngine(t), Pull: docker.PullNever}}
	cfg.Environment.PermissionTimeout = 20 * time.Millisecond
	cfg.HealthInterval = -1
	var last *environment.Environment
	cfg.Create = func(ctx context.Context, cfg environment.Config) (_ *environment.Environment, err error) {
		last, err = environment.Create(ctx, cfg)
		return last, err
	}
	s := start(t, cfg)
	complete(t, prompt(t, s, "a prompt that is in no record"))
	first := last.ID()
	if err := last.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := last.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	joined := cfg.Environment
	joined.SessionID = s.ID()
	again, err := environment.Attach(t.Context(), joined, first)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if err := testdocker.Engine(t).ContainerKill(t.Context(), first, "KILL"); err != nil {
		t.Fatal(err)
	}
	written.await(t, "connection to the guest lost") // the session, which finds it out as well, then closes what is left of it
	complete(t, prompt(t, s, "b"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	orphan := collectOrphan(t, logger)
	for _, want := range []struct {
		what, message, level string
		keys                 string
	}{
		{"a sandbox was made", "sandbox created", "info", "sandbox session type agent"},
		{"retry of the model", "log event", "warn", "sandbox session type agent query message"},
		{"permission time-out", "permission request timed out and was rejected", "warn", "session type agent query request"},
		{"retry of an engine call", "engine is asked again to pause or resume the container", "debug", "sandbox type attempt error"},
		{"connection to the guest", "connected to the guest", "debug", "sandbox type"},
		{"a second connection", "attached to the sandbox", "info", "sandbox session type agent"},
		{"kill of the sandbox", "connection to the guest lost", "warn", "sandbox type"},
		{"kill of the sandbox, for the session", "sandbox lost", "warn", "session type agent reason"},
		{"the end", "session closed", "info", "session type agent"},
		{"orphan found", "orphan found", "info", "sandbox type kind why"},
		{"collection", "orphan removed", "info", "sandbox type kind why"},
	} {
		record := written.find(t, want.message)
		if record["@level"] != want.level {
			t.Errorf("%s: record %v, want level %s", want.what, record, want.level)
		}
		for _, key := range strings.Fields(want.keys) {
			if record[key] == nil {
				t.Errorf("%s: record %v has no %s", want.what, record, key)
			}
		}
		for key, id := range map[string]string{"session": s.ID(), "type": "docker", "agent": "script"} {
			if got := record[key]; got != nil && got != id && (key != "type" || got != "local") {
				t.Errorf("%s: %s is %v, want %s", want.what, key, got, id)
			}
		}
	}
	if got := written.find(t, "orphan removed")["sandbox"]; got != orphan {
		t.Errorf("the orphan is %v, want %s", got, orphan)
	}
	for _, hidden := range []string{secret, "a prompt that"} {
		if strings.Contains(written.text(), hidden) {
			t.Errorf("%q is in the records", hidden)
		}
	}
	if t.Failed() {
		t.Log(written.text())
	}
}

// collectOrphan runs a program that creates a sandbox and dies, and collects the orphaned
// sandbox.
func collectOrphan(t *testing.T, logger hclog.Logger) (id string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "sandboxes")
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), orphanIn+"="+root)
	out, _ := cmd.Output() // it was killed
	box := environment.Sandbox{Type: "local", Provider: &local.Provider{Root: root}}
	for _, dry := range []bool{true, false} {
		found, err := environment.GC(t.Context(), box, environment.GCOptions{GCOptions: primitives.GCOptions{DryRun: dry, NoGrace: true}, Logger: logger})
		if err != nil || !slices.ContainsFunc(found, func(g environment.Garbage) bool { return g.ID == strings.TrimSpace(string(out)) }) {
			t.Fatalf("collected %v, %v; want %s", found, err, out)
		}
	}
	return strings.TrimSpace(string(out))
}
