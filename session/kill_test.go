package session

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	_ "github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// killsVariable names the environment variable with the number of rounds in which programs are
// killed, for each type of sandbox.
const killsVariable = "SESSION_TEST_KILLS"

const defaultKills = 2

// hostVariable names the environment variable that makes the test binary run beHost: a program
// that runs a session, for the test to kill.
const hostVariable = "SESSION_TEST_HOST"

// hostConfig configures such a program. The program opens the session, a new one if ID is empty,
// prints its ID, sends the prompt if the session has none, and allows all permission requests.
type hostConfig struct {
	Store       string
	ID          string
	Environment environment.Config
	Prompt      string
}

func beHost(config string) error {
	var cfg hostConfig
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	s, closeAll, err := cfg.open(context.Background())
	if err != nil {
		return err
	}
	fmt.Println(s.ID())
	if err := cfg.run(context.Background(), s); err != nil {
		return err
	}
	return closeAll()
}

// open opens the session. If it has an ID, only the agent's variables are given: the store has
// the rest of the configuration.
func (c hostConfig) open(ctx context.Context) (*AgentSession, func() error, error) {
	st, err := sqlite.Open(ctx, c.Store)
	if err != nil {
		return nil, nil, err
	}
	cfg := Config{Store: st, ID: c.ID, Environment: c.Environment}
	if c.ID != "" {
		cfg.Environment = environment.Config{Agent: environment.Agent{Env: c.Environment.Agent.Env}}
	}
	cfg.Environment.OnPermission, cfg.Environment.PermissionTimeout = environment.AnswerLater, -1
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return s, func() error { return errors.Join(s.Close(), st.Close()) }, nil
}

// run runs the query to its end.
func (c hostConfig) run(ctx context.Context, s *AgentSession) error {
	turns := s.Turns()
	if len(turns) == 0 {
		events, err := endedQueries(ctx, s)
		if err != nil || events > 0 {
			return err // the query ended before the earlier program died
		}
		turn, err := s.Prompt(ctx, c.Prompt)
		if err != nil {
			return err
		}
		turns = append(turns, turn)
	}
	if len(turns) != 1 {
		return fmt.Errorf("%d queries run or wait", len(turns))
	}
	for ev, err := range turns[0].Events(ctx) {
		if err != nil {
			return err
		}
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		if err == nil {
			err = s.Respond(ctx, req.ID, req.Allow())
		}
		// The earlier program may have answered the request.
		if err != nil && !errors.Is(err, ErrNotPending) {
			return err
		}
	}
	_, err := turns[0].Wait(ctx)
	return err
}

func endedQueries(ctx context.Context, s *AgentSession) (n int, err error) {
	for ev, err := range s.store.Events(ctx, s.ID(), 1) {
		if err != nil {
			return 0, err
		}
		if ev.Type.EndsQuery() {
			n++
		}
	}
	return n, nil
}

// killedAfter runs such a program and kills it after the given time unless it has ended. It
// returns the session's ID; empty if the program had not printed one.
func killedAfter(t *testing.T, cfg hostConfig, after time.Duration) (id string, killed bool, took time.Duration) {
	t.Helper()
	config, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := exec.Command(self)
	host.Env = append(os.Environ(), hostVariable+"="+string(config))
	var stderr strings.Builder
	host.Stderr = &stderr
	out, err := host.StdoutPipe()
	if err == nil {
		err = host.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	killer := time.AfterFunc(after, func() { _ = host.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		id = lines.Text()
	}
	err = host.Wait()
	killer.Stop()
	failed, ok := errors.AsType[*exec.ExitError](err)
	if ok && failed.Exited() {
		t.Errorf("the program failed: %v: %s", err, stderr.String())
	}
	return id, ok && !failed.Exited(), time.Since(began)
}

// killed kills programs at random times until one finishes the query, and checks that the store
// then has the query once.
func killed(t *testing.T, env environment.Config, prompt string, check func(t *testing.T, s *AgentSession)) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	rounds := defaultKills
	if n, err := strconv.Atoi(os.Getenv(killsVariable)); err == nil {
		rounds = n
	}
	env.Sandbox.Keep = true
	dir := filepath.Join(t.TempDir(), "sessions")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		left, err := environment.List(ctx, env.Sandbox)
		for _, info := range left {
			if info.Type == "docker" && !testdocker.Made(t, info.ID) {
				continue
			}
			t.Errorf("a sandbox is left: %s", info.ID)
			err = errors.Join(err, environment.Remove(ctx, env.Sandbox, info.ID))
		}
		if err != nil {
			t.Error(err)
		}
	})
	cfg := hostConfig{Store: dir, Environment: env, Prompt: prompt}
	whole := 10 * time.Minute
	kills, begun, played := 0, 0, 0
	defer func() {
		t.Logf("%d sessions, of which %d were begun by a program that was killed; %d kills", played, begun, kills)
	}()
	for round := range rounds + 1 { // the first round kills nothing: it measures a whole run
		cfg.ID = ""
		for range 3 {
			after := whole
			if round > 0 {
				after = rand.N(whole + whole/10)
			}
			id, killed, took := killedAfter(t, cfg, after)
			if round == 0 {
				whole = took
			}
			if killed {
				kills++
			}
			if id != "" {
				cfg.ID = id
			}
			if round == 0 || rand.N(2) == 0 {
				break
			}
		}
		if t.Failed() {
			return
		}
		finish(t, cfg, check)
		if t.Failed() {
			return
		}
		if round > 0 {
			played++
		}
		if round > 0 && cfg.ID != "" {
			begun++
		}
	}
}

// finish opens the session in this program, runs its query to the end and checks it.
func finish(t *testing.T, cfg hostConfig, check func(t *testing.T, s *AgentSession)) {
	t.Helper()
	s, closeAll, err := cfg.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(s.Destroy(context.WithoutCancel(t.Context())), closeAll()); err != nil {
			t.Error(err)
		}
	}()
	if err := cfg.run(t.Context(), s); err != nil {
		t.Errorf("the query: %v", err)
	}
	events := logOf(t, s)
	defer func() {
		if !t.Failed() {
			return
		}
		for _, ev := range events {
			t.Logf("%s %d %s %d %s %.300s", ev.Time.Format(time.StampMilli), ev.Seq, ev.Type, ev.Index, ev.QueryID, ev.Payload)
		}
	}()
	once(t, events)
	for typ, want := range map[runnerscripts.EventType]int{
		runnerscripts.TypeQueryQueued: 1, runnerscripts.TypeQueryStarted: 1, runnerscripts.TypeQueryCompleted: 1, runnerscripts.TypeQueryFailed: 0,
		runnerscripts.TypePermissionRequest: 1, runnerscripts.TypePermissionResolved: 1,
	} {
		if n := count(events, typ); n != want {
			t.Errorf("%d events %s, want %d", n, typ, want)
		}
	}
	if s.live() == nil { // the program died after the end of its query, before its sandbox was recorded
		t.Error("the session has no sandbox")
		return
	}
	check(t, s)
	if here, ok := cfg.Environment.Sandbox.Provider.(*local.Provider); ok && cfg.Environment.Agent.Name == "claude" {
		if n := agents(t, here.Root); n > 1 {
			t.Errorf("%d agents run", n)
		}
	}
}

// agents returns the number of agents in the sandboxes below a folder. It does not count a child
// of an agent, which looks like the agent until it calls exec.
func agents(t *testing.T, root string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[string]string{} // parent process IDs of the processes that look like agents
	for _, name := range all {
		dir := filepath.Dir(name)
		line, _ := os.ReadFile(name) // the process may have ended
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		if strings.Contains(string(line), "\x00stream-json\x00") && strings.Contains(string(environ), "HOME="+root) {
			_, parent, _ := strings.Cut(string(status), "\nPPid:\t")
			parent, _, _ = strings.Cut(parent, "\n")
			parents[filepath.Base(dir)] = parent
		}
	}
	for _, parent := range parents {
		if _, forked := parents[parent]; !forked {
			n++
		}
	}
	return n
}

// ranOnce fails unless the prompt ran once, according to the file ran.
func ranOnce(t *testing.T, s *AgentSession) {
	t.Helper()
	if got, _ := written(t, s, "ran"); got != "ran\n" {
		t.Errorf("the prompt ran: %q", got)
	}
}

// everySandbox runs a test with a sandbox of each type.
func everySandbox(t *testing.T, test func(t *testing.T, box environment.Sandbox)) {
	t.Helper()
	for name, box := range map[string]func(t *testing.T) environment.Sandbox{
		"local": func(t *testing.T) environment.Sandbox {
			return environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}
		},
		"docker": func(t *testing.T) environment.Sandbox {
			return environment.Sandbox{
				Type: "docker", Provider: &docker.Provider{Pull: docker.PullNever},
				Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels()},
			}
		},
		"modal": func(t *testing.T) environment.Sandbox {
			testmodal.New(t).Setenv(t)
			return environment.Sandbox{Type: "modal", Spec: primitives.Spec{Image: "debian:12"}}
		},
		"ssh": func(t *testing.T) environment.Sandbox {
			testssh.Start(t)
			return environment.Sandbox{Type: "ssh", Provider: &ssh.Provider{Host: testssh.Alias, Root: t.TempDir()}}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, box(t)) })
	}
}

func TestASessionSurvivesProgramsThatAreKilledAtAnyTime(t *testing.T) {
	everySandbox(t, func(t *testing.T, box environment.Sandbox) {
		pause := runnerscripts.ScenarioStep{DelayMS: 50}
		cfg := scripted(t, steps(
			say("one"), run("sh", "-c", "echo ran >>ran"), pause, ask(write("f", "1")), pause, say("two"), pause, say("three"),
		)).Environment
		cfg.Sandbox = box
		killed(t, cfg, "go", ranOnce)
	})
}

func TestASessionWithClaudeSurvivesProgramsThatAreKilledAtAnyTime(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		api, err := llmapi.Start(t.Context(), llmapi.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.Close(); err != nil {
				t.Error(err)
			}
		})
		killed(t, environment.Config{
			Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}},
			Agent: environment.Agent{
				Name: "claude", Command: []string{testagents.Claude(t)},
				Env: map[string]string{"ANTHROPIC_BASE_URL": api.URL, "ANTHROPIC_API_KEY": "test-key", "CLAUDE_CODE_MAX_RETRIES": "1"},
			},
			Runner: runnerBinary,
		}, "now run-command `echo ran >>ran`", ranOnce)
	})
}
