package environment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// hostVariable makes the test binary run as a host program. It holds the configuration of the
// environment. The program sends the prompt in promptVariable.
const (
	hostVariable   = "AGENTENV_TEST_HOST"
	promptVariable = "AGENTENV_TEST_PROMPT"
	schemaVariable = "AGENTENV_TEST_SCHEMA" // the OutputSchema of the prompt
)

// promptAskLater is the prompt of a host that leaves permission requests unanswered.
const promptAskLater = "ask later"

// beHost creates a kept sandbox, prints its ID and the text of a query's events, and is then
// killed.
func beHost(ctx context.Context, config string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	if os.Getenv(promptVariable) == promptAskLater {
		cfg.OnPermission = AnswerLater
	}
	env, err := Create(ctx, cfg)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(env.ID() + "\n"); err != nil {
		return err
	}
	for ev, err := range env.ExecuteQuery(ctx, Query{Prompt: os.Getenv(promptVariable), ID: "the-query", OutputSchema: json.RawMessage(os.Getenv(schemaVariable))}) {
		if err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString(string(ev.Type) + " " + ev.Text() + "\n"); err != nil {
			return err
		}
	}
	return env.Close()
}

// killedHost runs such a program until it prints a line that contains until, kills it and
// returns the sandbox's ID.
func killedHost(t *testing.T, cfg Config, until string) string {
	t.Helper()
	return killedWhen(t, cfg, "go", func(lines *bufio.Scanner) {
		for !strings.Contains(lines.Text(), until) {
			if !lines.Scan() {
				t.Errorf("the host printed no line with %q", until)
				return
			}
		}
	})
}

// killedWhen runs such a program with a prompt, and kills it when the function returns.
func killedWhen(t *testing.T, cfg Config, prompt string, when func(lines *bufio.Scanner)) string {
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
	host.Env = append(os.Environ(), hostVariable+"="+string(config), promptVariable+"="+prompt)
	host.Stderr = os.Stderr
	out, err := host.StdoutPipe()
	if err == nil {
		err = host.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	id := ""
	if lines.Scan() {
		id = lines.Text()
		when(lines)
	}
	if err := host.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = host.Wait() // it was killed
	if id == "" {
		t.Fatal("the host made no sandbox")
	}
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), cfg.Sandbox, id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove: %v", err)
		}
	})
	return id
}

// waiting returns a turn that prints a text, waits for a file, and prints another text.
func waiting(file string) runnerscripts.ScenarioTurn {
	return turn(
		runnerscripts.ScenarioStep{Text: "before"},
		runnerscripts.ScenarioStep{Run: []string{"sh", "-c", "until [ -e " + file + " ]; do sleep 0.02; done"}},
		runnerscripts.ScenarioStep{Text: "after"},
	)
}

func TestAQueryOutlivesItsKilledHostAndCanBeFollowed(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		agent := scenario(t, waiting("go-on"), turn(runnerscripts.ScenarioStep{Text: "second after {{history}}"}))
		agent.Env = map[string]string{"SECRET": "hunter2"}
		id := killedHost(t, Config{Sandbox: toKeep(box), Agent: agent}, "before")
		env := attach(t, id, box)
		unattended(t, env, true)
		var seen strings.Builder
		begun := ""
		for ev, err := range env.FollowQuery(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if begun == "" {
				begun = string(ev.Type)
			}
			if ev.QueryID != "" && ev.QueryID != "the-query" {
				t.Errorf("%s belongs to %q", ev.Type, ev.QueryID)
			}
			if seen.WriteString(ev.Text()); strings.HasSuffix(seen.String(), "before") {
				writeIn(t, env, "go-on", "")
			}
		}
		if text := seen.String(); begun != string(runnerscripts.TypeSessionInitialized) || !strings.Contains(text, "before") || !strings.HasSuffix(text, "after") {
			t.Errorf("it began with %s and said %q", begun, text)
		}
		unattended(t, env, false)
		// The orphaned agent takes the next prompt.
		events, err := collect(t.Context(), env, Query{Prompt: "more"})
		if err != nil {
			t.Fatal(err)
		}
		if got := conversation(t, events); !strings.Contains(got, "second after") || strings.Contains(got, "before") {
			t.Errorf("the agent said %q", got)
		}
		if !env.queries.Agent().Adopted {
			t.Error("the agent was started again")
		}
		// A replay of an ended query is the same for every client.
		again, err := followed(t.Context(), attach(t, id, box))
		if err != nil || conversation(t, again) != conversation(t, events) {
			t.Errorf("followed again: %q, %v", conversation(t, again), err)
		}
		noSecretInFiles(t, env, "hunter2")
	})
}

func TestAnInterruptLeavesTheQueryOfAnotherProgramAlone(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"), turn(runnerscripts.ScenarioStep{Text: "again"}))})
	removeLater(t, env)
	other := attach(t, env.ID(), box)
	var said strings.Builder
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "a"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeLog {
			t.Errorf("the queries of another program show as %s", ev.Payload)
		}
		if said.WriteString(ev.Text()); ev.Text() == "" || said.String() != "before" {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		var types []runnerscripts.EventType
		var last error
		go func() { // waits until its prompt is queued
			for len(promptsOf(t, env)) < 2 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		for ev, err := range other.ExecuteQuery(ctx, Query{Prompt: "b"}) {
			if last = err; err == nil {
				types = append(types, ev.Type)
			}
		}
		if !errors.Is(last, context.Canceled) || errors.Is(last, query.ErrNotStopped) {
			t.Errorf("the query that waited: %v after %v", last, types)
		}
		writeIn(t, env, "go-on", "")
	}
	if said.String() != "beforeafter" {
		t.Errorf("the query that ran said %q", said.String())
	}
	// The agent that both programs use continues.
	events, err := collect(t.Context(), env, Query{Prompt: "c"})
	if err != nil || conversation(t, events) == "" {
		t.Errorf("the next query: %q, %v", types(events), err)
	}
}

func TestAQueryThatTwoProgramsSeeIsCountedOnce(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"))})
	removeLater(t, env)
	other := attach(t, env.ID(), box)
	var following sync.WaitGroup
	var said strings.Builder
	var done runnerscripts.QueryCompleted
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "a"}) {
		if err != nil {
			t.Fatal(err)
		}
		if end, ok := ev.Value().(*runnerscripts.QueryCompleted); ok {
			done = *end
		}
		if said.WriteString(ev.Text()); ev.Text() == "" || said.String() != "before" {
			continue
		}
		begun := make(chan struct{})
		following.Go(func() {
			begin := sync.OnceFunc(func() { close(begun) })
			defer begin()
			for _, err := range other.FollowQuery(t.Context(), 0) {
				if err != nil {
					t.Error(err)
				}
				begin()
			}
		})
		<-begun
		writeIn(t, env, "go-on", "")
	}
	following.Wait()
	if got := listed(t, box, env.ID()).Usage; got != done.Usage || got.TotalInput() == 0 {
		t.Errorf("the list says %+v, the query has used %+v", got, done.Usage)
	}
}

// promptsOf returns the IDs of the prompts that a kept sandbox lists.
func promptsOf(t *testing.T, env *Environment) []string {
	t.Helper()
	p := env.Primitive()
	list, err := primitives.ReadFile(t.Context(), p, p.Paths().App+"/"+query.File, 1<<20)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	var ids []string
	for line := range strings.Lines(string(list)) {
		var one struct {
			QueryID string `json:"query_id"`
			Seen    bool   `json:"seen"`
		}
		if !strings.HasSuffix(line, "\n") {
			continue // it is being written
		}
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Errorf("%q: %v", line, err)
		} else if !one.Seen {
			ids = append(ids, one.QueryID)
		}
	}
	return ids
}

func TestAQueryWhoseAgentNeverBeganIsOver(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		kept, err := Create(t.Context(), Config{Sandbox: toKeep(box), Agent: Agent{Name: "acp", Command: []string{"sh", "-c", "exit 3"}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := Remove(context.WithoutCancel(t.Context()), box, kept.ID()); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
		if _, err := collect(t.Context(), kept, Query{Prompt: "go"}); err == nil {
			t.Error("the query did not fail")
		}
		unattended(t, kept, false)
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
		unattended(t, attach(t, kept.ID(), box), false)
	})
}

func unattended(t *testing.T, env *Environment, want bool) {
	t.Helper()
	if got, err := env.Unattended(t.Context()); got != want || err != nil {
		t.Errorf("unattended: %v, %v; want %v", got, err, want)
	}
}

// followed returns the events of FollowQuery.
func followed(ctx context.Context, env *Environment) (events []runnerscripts.Event, err error) {
	for ev, err := range env.FollowQuery(ctx, 0) {
		if err != nil {
			return events, err
		}
		events = append(events, ev)
	}
	return events, nil
}

// noSecretInFiles checks that no file of a sandbox contains a text.
func noSecretInFiles(t *testing.T, env *Environment, secret string) {
	t.Helper()
	root := path.Dir(env.Primitive().Paths().App)
	list, err := env.Primitive().List(t.Context(), root, primitives.ListOptions{Depth: -1})
	if err != nil || len(list) == 0 {
		t.Fatalf("%d files, %v", len(list), err)
	}
	for _, info := range list {
		if !info.Mode.IsRegular() {
			continue
		}
		content, err := primitives.ReadFile(t.Context(), env.Primitive(), path.Join(root, info.Path), maxNote)
		if err != nil || bytes.Contains(content, []byte(secret)) {
			t.Errorf("%s contains the secret, or %v", info.Path, err)
		}
	}
}
