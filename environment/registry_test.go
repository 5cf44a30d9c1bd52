package environment

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/acpregistry"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAgentsOfTheRegistryHaveRecipes(t *testing.T) {
	t.Parallel()
	all, err := Agents(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range all {
		names = append(names, a.Agent)
		if runnerscripts.IsRegistryAgent(a.Agent) && (a.Program == "" || a.Version == "" || !slices.Contains(a.Supports, runnerscripts.FeaturePermissions)) {
			t.Errorf("%+v", a)
		}
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "claude") || !slices.Contains(names, "acp:goose") {
		t.Errorf("the agents are %q", names)
	}
}

func TestAnUnknownNameOfTheRegistryIsRefused(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"acp:gose": `there is no agent "acp:gose"; did you mean acp:goose? there are: acp:auggie, `,
		"goose":    `there is no agent "goose"; did you mean acp:goose? there are: acp, claude, `,
		"acp:":     `there is no agent "acp:"; there are: acp:auggie, `,
		"acp:../x": `there is no agent "acp:../x"; there are: acp:auggie, `,
	} {
		cfg, err := ParseConfig([]byte("agent: " + strconv.Quote(name)))
		if err != nil || cfg.Agent.Name != name {
			t.Fatalf("%q: %+v, %v", name, cfg.Agent, err)
		}
		cfg.Sandbox, cfg.Agent.Command = sandbox(t), []string{"mine"}
		err = cfg.Check(t.Context())
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		if !errors.Is(err, ErrConfig) || !ok || failure.Code != runnerscripts.FailUnknownAgent || !strings.HasPrefix(failure.Message, want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestAnAgentOfTheRegistryIsFoundInPATH uses a program in place of Goose. Another client goes on with
// it by the record of this machine, which has only its name, and another agent after it.
func TestAnAgentOfTheRegistryIsFoundInPATH(t *testing.T) {
	t.Parallel()
	box := programs(t, map[string]string{"goose": `test "$*" = acp || exit 2` + "\n" + needsKey})
	box.Env["PATH"] += ":/usr/bin:/bin"
	env, err := Create(t.Context(), Config{Sandbox: toKeep(box), Agent: Agent{Name: "acp:goose", Env: map[string]string{"KEY": "test-key"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), box, env.ID()); err != nil {
			t.Error(err)
		}
	})
	for _, agent := range []Agent{{}, {Env: map[string]string{"KEY": "test-key"}}, {Name: "script"}} {
		want := "acp:goose"
		if agent.Env != nil || agent.Name != "" {
			if env, err = Attach(t.Context(), Config{Sandbox: box, Agent: agent}, env.ID()); err != nil {
				t.Fatal(err)
			}
		}
		events, err := collect(t.Context(), env, Query{Prompt: "go"})
		if err != nil {
			t.Fatal(err)
		}
		by := payloads[runnerscripts.SessionInitialized](events)
		if agent.Name != "" {
			want = agent.Name
			restored := payloads[runnerscripts.TranscriptRestored](events)
			if len(restored) != 1 || restored[0].From != "acp:goose" {
				t.Errorf("restored %+v", restored)
			}
		}
		if len(by) != 1 || by[0].Agent != want {
			t.Errorf("the agent is %+v, want %s", by, want)
		}
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAnAgentOfTheRegistryThatIsMissingIsAnError(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"acp:goose": "from https://github.com/block/goose/", "acp:qwen-code": "with 'npm install --global @qwen-code/qwen-code@"} {
		env := create(t, Config{Sandbox: programs(t, nil), Agent: Agent{Name: name}})
		_, err := env.PrepareSession(t.Context(), Setup{})
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		if !ok || failure.Code != runnerscripts.FailAgentMissing || !strings.Contains(failure.Message, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAgentOfTheRegistryIsUsedAtAnyVersion(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Sandbox: programs(t, map[string]string{
		"goose": "echo 1.0.1\n", "qwen": "echo no such option >&2; exit 2\n", "droid": "read -r line; echo '{}'\n",
	})})
	for name, want := range map[string]string{"acp:goose": "1.0.1", "acp:qwen-code": "unknown", "acp:factory-droid": "unknown"} {
		registered, _ := acpregistry.Find(name)
		a := registered.Complete(AgentInfo{})
		if got, err := env.AgentVersion(t.Context(), a); got != want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err := env.InstallAgent(t.Context(), a); err != nil {
			t.Errorf("install %s: %v", name, err)
		}
	}
}

// TestAnAgentOfTheRegistryIsInstalledFromNPM uses a fake npm, which creates the program from its
// arguments.
func TestAnAgentOfTheRegistryIsInstalledFromNPM(t *testing.T) {
	cfg := inContainer(t, base(t, strings.ReplaceAll(testdocker.FakeNPM, "/bin/claude", "/bin/qwen")))
	cfg.Agent.Name = "acp:qwen-code"
	env := create(t, cfg)
	res, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"qwen"}}, primitives.RunOptions{})
	registered, _ := acpregistry.Find(cfg.Agent.Name)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(res.Stdout)), " "+registered.NPM) {
		t.Errorf("npm was called with %q %q, %v", res.Stdout, res.Stderr, err)
	}
	img, err := BuildImage(t.Context(), cfg)
	if err != nil || img.Agent != "acp:qwen-code" || img.Version != registered.Version || !strings.HasPrefix(img.Ref, "agentenv-acp-qwen-code:") {
		t.Errorf("the image: %+v, %v", img, err)
	}

	cfg.Agent.Name = "acp:goose"
	if img, err := BuildImage(t.Context(), cfg); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), `its program "goose"`) {
		t.Errorf("an archive: %+v, %v", img, err)
	}
	_, err = create(t, cfg).PrepareSession(t.Context(), Setup{}) // in the base image
	if failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err); !ok || failure.Code != runnerscripts.FailAgentMissing {
		t.Errorf("an archive that is missing: %v", err)
	}
	list, err := Images(t.Context(), cfg.Sandbox)
	if err != nil || slices.ContainsFunc(list, func(i Image) bool { return i.Agent == cfg.Agent.Name }) {
		t.Errorf("the images are %+v, %v", list, err)
	}
	goose, _ := acpregistry.Find(cfg.Agent.Name)
	if err := env.InstallAgent(t.Context(), goose.Complete(AgentInfo{})); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "from https://") {
		t.Errorf("an archive in a live sandbox: %v", err)
	}
	if _, err := env.AgentVersion(t.Context(), goose.Complete(AgentInfo{})); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("is it there: %v", err)
	}
}

// payloads returns the payloads of one type.
func payloads[T any](events []runnerscripts.Event) (list []*T) {
	for _, ev := range events {
		if p, ok := any(ev.Value()).(*T); ok {
			list = append(list, p)
		}
	}
	return list
}
