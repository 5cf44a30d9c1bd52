//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// turnRounds is how many turns of each kind are measured.
const turnRounds = 9

// turner is an agent's program, with its arguments for one prompt.
type turner struct {
	realAgent
	args func(url string) []string
	// config, if not nil, returns agent.Config.
	config func(url string) []byte
}

// benchTurn compares whole turns of an agent, from before its program starts until after it has
// ended, with direct turns of the same program: over the driver's protocol, with the same
// arguments, environment and files, and with the program's own command for one prompt.
func benchTurn(name string) func(context.Context) ([]row, error) {
	return func(ctx context.Context) (rows []row, err error) {
		t, err := findTurner(name)
		if err != nil {
			return nil, err
		}
		model, err := llmapi.Start(ctx, llmapi.Config{})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, model.Close()) }()
		runner, err := bundle.Path(ctx, bundle.Config{OS: "linux"})
		if err != nil {
			return nil, err
		}
		if t.config != nil {
			t.agent.Config = t.config(model.URL)
		}
		t.agent.Command, t.agent.Env = []string{t.program}, t.variables(model.URL)
		l, err := recordLaunch(ctx, t, runner)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(l.dir)) }()
		return compareTurns(name,
			func() (turn, error) { return timedTurn(func() error { return turnThroughUs(ctx, t.agent, runner) }) },
			func() (turn, error) { return l.turn(t.program, func(c *conduct) error { return t.talk(ctx, c) }) },
			func() (turn, error) {
				return l.turn(t.program, func(c *conduct) error { return c.run(ctx, t.args(model.URL)) })
			})
	}
}

// turn is what a whole turn took: wall time and processor time, which depends less on the load
// of the machine.
type turn struct{ wall, work time.Duration }

func timedTurn(run func() error) (turn, error) {
	start, worked := time.Now(), processorTime()
	err := run()
	return turn{time.Since(start), processorTime() - worked}, err
}

// processorTime returns the processor time of this program and of the processes that it has
// reaped.
func processorTime() (d time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			d += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return d
}

// compareTurns runs the three ways in turn, after a round that does not count. A ratio is the
// median, or the lower quartile, of the ratios of the rounds: both sides of a round had nearly
// the same load.
func compareTurns(name string, ours, direct, command func() (turn, error)) (rows []row, err error) {
	ways := []func() (turn, error){ours, direct, command}
	took := make([][3]turn, turnRounds+1)
	for round := range took {
		for k := range ways {
			i := (round + k) % len(ways)
			if took[round][i], err = ways[i](); err != nil {
				return nil, err
			}
		}
	}
	for i, base := range []string{"", "the program driven over the same protocol", "the program's command for one prompt"} {
		if i == 0 {
			continue
		}
		for what, of := range map[string]func(turn) time.Duration{
			"time": func(t turn) time.Duration { return t.wall }, "processor time": func(t turn) time.Duration { return t.work },
		} {
			rounds := took[1:]
			slices.SortFunc(rounds, func(a, b [3]turn) int {
				return cmp.Compare(of(a[0]).Seconds()/of(a[i]).Seconds(), of(b[0]).Seconds()/of(b[i]).Seconds())
			})
			for at, r := range map[string][3]turn{"median": rounds[len(rounds)/2], "lower quartile": rounds[len(rounds)/4]} {
				rows = append(rows, ratioRow(fmt.Sprintf("%s, whole turn, %s, %s", name, what, at), base, "ms", lower, millis(of(r[i])), millis(of(r[0])), 1.10))
			}
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(b.Base, a.Base), cmp.Compare(b.Name, a.Name)) })
	return rows, nil
}

func findTurner(name string) (t turner, err error) {
	switch name {
	case "gemini":
		t.realAgent = realAgent{name: name, agent: environment.Agent{Name: name, Model: "gemini-2.5-pro"}, talk: talkToGemini}
		t.variables = func(url string) map[string]string {
			return map[string]string{"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "test-key"}
		}
		t.args = func(string) []string {
			return []string{"-m", "gemini-2.5-pro", "--skip-trust", "-o", "stream-json", "-p", prompt}
		}
		t.program, err = testagents.FindGemini()
	case "opencode":
		t.realAgent = realAgent{name: name, agent: environment.Agent{Name: name, Model: "scripted/small"}, talk: talkToOpenCode}
		t.variables = func(string) map[string]string { return nil }
		t.config = scriptedProvider
		t.args = func(string) []string { return []string{"run", "-m", "scripted/small", "--format", "json", prompt} }
		t.program, err = testagents.FindOpenCode()
	default:
		agents, err := realAgents()
		if err != nil {
			return t, err
		}
		t.realAgent = agents[slices.IndexFunc(agents, func(a realAgent) bool { return a.name == name })]
		t.args = func(string) []string { return []string{"-p", "--output-format", "stream-json", "--verbose", prompt} }
		if name == "codex" {
			t.args = codexExec
		}
	}
	if err != nil {
		return t, missing{err}
	}
	return t, nil
}

func codexExec(url string) []string {
	return []string{
		"exec", "--json", "--skip-git-repo-check", "-m", "gpt-5.5", "-c", `model_provider="bench"`, "-c",
		fmt.Sprintf(`model_providers.bench={name="OpenAI",base_url=%q,env_key="OPENAI_API_KEY",wire_api="responses"}`, url+"/v1"), prompt,
	}
}

// scriptedProvider returns OpenCode's configuration of a provider that is the scripted model.
func scriptedProvider(url string) []byte {
	return fmt.Appendf(nil, `{"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"%s/v1","apiKey":"test-key"},`+
		`"models":{"small":{"tool_call":true,"limit":{"context":128000,"output":8192}}}}}}`, url)
}

// launched is how the driver started the program: its arguments and environment, and a copy of
// its home folder at that time.
type launched struct {
	dir       string // of the copy and of the turns' homes
	home      string // as the variables and arguments name it
	args, env []string
}

// recordLaunch makes the driver start a script that records the launch and then becomes the
// program.
func recordLaunch(ctx context.Context, t turner, runner string) (l launched, err error) {
	if l.dir, err = os.MkdirTemp("", "bench-turn-"); err != nil {
		return l, err
	}
	script := fmt.Sprintf("#!/bin/sh\ncd %[1]q && rm -rf home && cp -a \"$HOME\" home && printf '%%s\\0' \"$@\" >args && env -0 >env\ncd \"$OLDPWD\" && exec %[2]q \"$@\"\n",
		l.dir, t.program)
	file := filepath.Join(l.dir, "program")
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		return l, err
	}
	t.agent.Command = []string{file}
	if err := turnThroughUs(ctx, t.agent, runner); err != nil {
		return l, err
	}
	for name, into := range map[string]*[]string{"args": &l.args, "env": &l.env} {
		data, err := os.ReadFile(filepath.Join(l.dir, name))
		if err != nil {
			return l, err
		}
		*into = strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	}
	for _, kv := range l.env {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok {
			l.home = home
		}
	}
	return l, nil
}

// turn measures a direct turn in a new home folder. The time does not include creating and
// removing the folder.
func (l launched) turn(program string, run func(*conduct) error) (took turn, err error) {
	dir, err := os.MkdirTemp(l.dir, "turn-")
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &conduct{program: program, dir: filepath.Join(dir, "work"), home: filepath.Join(dir, "home"), said: make([]answered, 1)}
	if err := errors.Join(os.CopyFS(c.home, os.DirFS(filepath.Join(l.dir, "home"))), os.Mkdir(c.dir, 0o700)); err != nil {
		return took, err
	}
	for from, to := range map[*[]string]*[]string{&l.args: &c.args, &l.env: &c.env} {
		for _, s := range *from {
			*to = append(*to, strings.ReplaceAll(s, l.home, c.home))
		}
	}
	took, err = timedTurn(func() error { return run(c) })
	if err != nil {
		err = fmt.Errorf("%w: %s", err, c.stderr.String())
	}
	return took, err
}

// turnThroughUs answers a prompt in a new sandbox.
func turnThroughUs(ctx context.Context, agent environment.Agent, runner string) (err error) {
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "local"}, Agent: agent, Runner: runner})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	said := false
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: prompt}) {
		if err != nil {
			return err
		}
		said = said || ev.Type == runnerscripts.TypeAgentMessage
	}
	if !said {
		return errors.New("the agent did not answer")
	}
	return nil
}
