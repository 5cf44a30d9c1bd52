//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/docker/api/types/network"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// prompt asks the scripted model for some text.
const prompt = "please plain-text"

// realAgent is an agent's program and how to talk to it without agentenv.
type realAgent struct {
	name, program string
	agent         environment.Agent
	variables     func(url string) map[string]string
	// talk starts the program directly, sends two prompts, and records when the answers came.
	talk func(ctx context.Context, c *conduct) error
}

// answered is how long an answer took: until its first words, and until its end.
type answered struct{ first, total time.Duration }

// dialogue is the first prompt, including the start of the agent, and the second.
type dialogue [2]answered

func realAgents() ([]realAgent, error) {
	claude, err := testagents.FindClaude()
	if err != nil {
		return nil, missing{err}
	}
	codex, err := testagents.FindCodex()
	if err != nil {
		return nil, missing{err}
	}
	return []realAgent{
		{"claude", claude, environment.Agent{Name: "claude"}, func(url string) map[string]string {
			return map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
		}, talkToClaude},
		{"codex", codex, environment.Agent{Name: "codex", Model: "gpt-5.5"}, func(url string) map[string]string {
			return map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"}
		}, talkToCodex},
	}, nil
}

// benchAgents compares agents through agentenv with the same programs driven directly,
// on this machine and in a container.
func benchAgents(ctx context.Context) (rows []row, err error) {
	agents, err := realAgents()
	if err != nil {
		return nil, err
	}
	runner, err := bundle.Path(ctx, bundle.Config{OS: "linux"})
	if err != nil {
		return nil, err
	}
	box, err := local.New(ctx, local.Config{Runner: runner})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end(ctx, box)) }()
	for _, a := range agents {
		more, err := compareAgent(ctx, a, place{box: box, runner: runner, address: "127.0.0.1"}, 1.05)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		rows = append(rows, more...)
	}
	err = withEngine(ctx, func(e *engine) error {
		for _, a := range agents {
			more, err := e.compareAgent(ctx, a)
			if err != nil {
				return fmt.Errorf("%s in a container: %w", a.name, err)
			}
			rows = append(rows, more...)
		}
		return nil
	})
	return rows, err
}

// compareAgent is the function compareAgent in a container that has the program mounted.
func (e *engine) compareAgent(ctx context.Context, a realAgent) (rows []row, err error) {
	bridge, err := e.NetworkInspect(ctx, "bridge", network.InspectOptions{})
	if err != nil {
		return nil, err
	}
	cfg := e.config(ways()[1])
	cfg.Network = ""
	const inside = "/opt/agent"
	mounted := e.provider(ways()[1])
	mounted.Mounts = []docker.Mount{{Source: filepath.Dir(a.program), Target: inside, ReadOnly: true}}
	cfg.Provider = mounted
	box, err := create(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end(ctx, box)) }()
	a.program = filepath.Join(inside, filepath.Base(a.program))
	return compareAgent(ctx, a, place{
		box: box, runner: e.runner, address: bridge.IPAM.Config[0].Gateway, where: " in a container",
		launcher: []string{"docker", "exec", "-i", box.ID()},
	}, 1.10)
}

// end ends a sandbox.
func end(ctx context.Context, p primitives.EnvironmentPrimitive) error {
	_, err := p.Terminate(context.WithoutCancel(ctx))
	return errors.Join(err, p.Close())
}

// place is a sandbox, and how to start programs in it without agentenv.
type place struct {
	box      primitives.EnvironmentPrimitive
	runner   string
	address  string // where programs in it reach this machine
	where    string // for the names of rows
	launcher []string
	look     func() // called while the agent waits for the next prompt
}

const agentRounds = 15

func compareAgent(ctx context.Context, a realAgent, at place, target float64) (_ []row, err error) {
	model, err := llmapi.Start(ctx, llmapi.Config{Addr: at.address + ":0"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	vars := a.variables(model.URL)
	var direct, ours []dialogue
	var memory []float64 // of the runner, in MiB
	at.look = func() {
		if rss, err := runnerMemory(); err == nil && at.where == "" {
			memory = append(memory, rss)
		}
	}
	run := func(i int, do func(context.Context, realAgent, place, map[string]string) (dialogue, error), into *[]dialogue) error {
		d, err := do(ctx, a, at, vars)
		if i > 0 { // the first runs find cold caches
			*into = append(*into, d)
		}
		return err
	}
	for i := range agentRounds + 1 {
		first, second := directly, throughUs
		f, s := &direct, &ours
		if i%2 == 1 {
			first, second, f, s = throughUs, directly, &ours, &direct
		}
		if err := errors.Join(run(i, first, f), run(i, second, s)); err != nil {
			return nil, err
		}
	}
	var rows []row
	for _, m := range []struct {
		name string
		of   func(dialogue) time.Duration
	}{
		{"first prompt, first words", func(d dialogue) time.Duration { return d[0].first }},
		{"first prompt, whole", func(d dialogue) time.Duration { return d[0].total }},
		{"second prompt, first words", func(d dialogue) time.Duration { return d[1].first }},
		{"second prompt, whole", func(d dialogue) time.Duration { return d[1].total }},
	} {
		base, our := millis(medianOf(direct, m.of)), millis(medianOf(ours, m.of))
		rows = append(rows, ratioRow(a.name+at.where+", "+m.name, "the program driven directly", "ms", lower, base, our, target))
	}
	if len(memory) > 0 {
		slices.Sort(memory)
		rows = append(rows, limitRow(a.name+", memory of the runner beside it", "MiB", lower, memory[len(memory)/2], 15))
	}
	return rows, nil
}

// runnerMemory returns the resident memory of the process that runs the agent, in MiB.
func runnerMemory() (float64, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(line, []byte("\x00"+runnerscripts.ExecuteQuery+"\x00")) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
		var kib float64
		if _, err := fmt.Sscan(string(rest), &kib); err == nil {
			return kib / 1024, nil
		}
	}
	return 0, errors.New("no runner runs an agent")
}

func medianOf(list []dialogue, of func(dialogue) time.Duration) time.Duration {
	all := make([]time.Duration, len(list))
	for i, d := range list {
		all[i] = of(d)
	}
	return median(all)
}

// throughUs runs both prompts in a new environment.
func throughUs(ctx context.Context, a realAgent, at place, vars map[string]string) (d dialogue, err error) {
	agent := a.agent
	agent.Command, agent.Env = []string{a.program}, vars
	env, err := environment.New(ctx, at.box, environment.Config{Agent: agent, Runner: at.runner})
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for i := range d {
		start := time.Now()
		for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: prompt}) {
			if err != nil {
				return d, err
			}
			if ev.Type == runnerscripts.TypeAgentMessage && d[i].first == 0 {
				d[i].first = time.Since(start)
			}
		}
		d[i].total = time.Since(start)
	}
	at.look()
	return d, nil
}

// directly starts the program with its own folders and pipes.
func directly(ctx context.Context, a realAgent, at place, vars map[string]string) (d dialogue, err error) {
	home := filepath.Join(at.box.Paths().Home, fmt.Sprint("direct-", time.Now().UnixNano()))
	if err := at.box.Mkdir(ctx, home, 0o700); err != nil {
		return d, err
	}
	env := maps.Clone(vars)
	env["HOME"], env["PATH"] = home, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	c := &conduct{program: a.program, launcher: at.launcher, dir: at.box.Paths().Workspace, home: home, said: make([]answered, len(d))}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		c.env = append(c.env, key+"="+env[key])
	}
	err = a.talk(ctx, c)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s has ended: %s", a.name, c.stderr.String())
	}
	return dialogue(c.said), errors.Join(err, at.box.Remove(ctx, home, true))
}
