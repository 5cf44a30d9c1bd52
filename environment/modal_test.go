package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// modalServer starts a server that speaks Modal's protocol, for this test.
func modalServer(t *testing.T) *testmodal.Server {
	t.Helper()
	s := testmodal.New(t)
	s.Setenv(t)
	return s
}

// atModal returns the configuration of a sandbox on a server of its own.
func atModal(t *testing.T) Sandbox {
	t.Helper()
	modalServer(t)
	box := Sandbox{Type: "modal", Spec: primitives.Spec{Image: "debian:12"}}
	if runtime.GOARCH != modal.Arch {
		box.Provider = &modal.Provider{Runner: func(context.Context, string, string) (string, error) { return testdocker.Runner(t), nil }} // the server runs this machine's programs
	}
	return box
}

// withClaude returns the configuration of a sandbox with Claude Code, on an image with
// additional instructions.
func withClaude(t *testing.T, instructions ...string) Config {
	t.Helper()
	testneed.Root(t, "the server of the tests builds no images otherwise")
	box := atModal(t)
	box = withBlock(box, func(p *modal.Provider) { p.Dockerfile = instructions })
	box.Image = "node:22"
	return Config{Agent: Agent{Name: "claude"}, Sandbox: box}
}

// TestOneWordOfTheConfigurationChoosesTheSandbox checks that the outcome is the same except for
// the sandbox's identity.
func TestOneWordOfTheConfigurationChoosesTheSandbox(t *testing.T) {
	const text = "sandbox: %s\nagent: {name: script}\nworkspace: [files: [{path: given, content: \"1\\n\"}]]\n"
	type outcome struct{ Events, Changes, Transcript string }
	outcomes := make(map[string]outcome)
	for word, box := range boxes(t) {
		t.Run(word, func(t *testing.T) {
			cfg, err := ParseConfig(fmt.Appendf(nil, text, word))
			if err != nil || cfg.Sandbox.Type != word {
				t.Fatalf("%+v, %v", cfg.Sandbox, err)
			}
			cfg.Sandbox = box // with images that need no registry
			env := create(t, cfg)
			events, err := collect(t.Context(), env, Query{Prompt: "hello"})
			if err != nil {
				t.Fatal(err)
			}
			transcript, err := env.ReadTranscript(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			outcomes[word] = outcome{types(events) + conversation(t, events), changes(t, env), fmt.Sprint(strings.Count(transcript.Main, "\n"))}
		})
	}
	for word, got := range outcomes {
		if want := outcomes["local"]; got != want || !strings.Contains(got.Changes, "created") {
			t.Errorf("%s:\n%+v, local:\n%+v", word, got, want)
		}
	}
}

func TestModalAddsAnAgentToAnImageOnce(t *testing.T) {
	cfg := withClaude(t, "RUN "+testdocker.FakeNPM)
	server := modalServer(t)
	for range 2 {
		env := create(t, cfg)
		res, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"claude"}}, primitives.RunOptions{})
		if err != nil || !strings.Contains(string(res.Stdout), "@anthropic-ai/claude-code@") {
			t.Errorf("claude says %q %q, %v", res.Stdout, res.Stderr, err)
		}
	}
	if n := server.Calls("ImageJoinStreaming"); n > 3 { // the base image, the image on it, and the image of the runner
		t.Errorf("builds were waited for %d times", n)
	}
	img, err := BuildImage(t.Context(), cfg)
	if err != nil || !strings.HasPrefix(img.Ref, "im-") || img.Base != "node:22" || img.Agent != "claude" || img.Version == "" {
		t.Fatalf("the image: %+v, %v", img, err)
	}
	// It is an image like any other.
	again := cfg
	again.Sandbox = withBlock(cfg.Sandbox, func(p *modal.Provider) { p.Dockerfile = nil })
	again.Sandbox.Image = img.Ref
	if _, err := create(t, again).Primitive().Stat(t.Context(), "/bin/claude"); err != nil {
		t.Error(err)
	}
	if list, err := Images(t.Context(), cfg.Sandbox); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("the list is %v, %v; want errors.ErrUnsupported", list, err)
	}
	if err := RemoveImage(t.Context(), cfg.Sandbox, img.Ref); err != nil {
		t.Error(err)
	}
	if err := RemoveImage(t.Context(), cfg.Sandbox, img.Ref); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
}

func TestModalUsesAnImageThatHasTheAgentAsItIs(t *testing.T) {
	create(t, withClaude(t, "RUN printf '#!/bin/sh\\n' >/usr/local/bin/claude && chmod +x /usr/local/bin/claude && rm /usr/bin/npm"))
	if img, err := BuildImage(t.Context(), Config{Agent: Agent{Name: "script"}, Sandbox: atModal(t)}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("for an agent that needs nothing: %+v, %v; want fs.ErrExist", img, err)
	}
}

func TestAnImageAtModalThatAnAgentCannotBeAddedToIsRefused(t *testing.T) {
	cfg := withClaude(t, "RUN rm /usr/bin/npm")
	const advice = "choose an image that has claude, or one of a Debian system with npm"
	_, err := Create(t.Context(), cfg)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), advice) || !strings.Contains(err.Error(), "the image lacks npm") {
		t.Errorf("Create: %v", err)
	}
	if _, err := BuildImage(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), advice) {
		t.Errorf("BuildImage: %v", err)
	}
	cfg.Agent.Name = "hal9000"
	_, err = Create(t.Context(), cfg)
	if failed, ok := errors.AsType[*runnerscripts.ScriptFailure](err); !ok || failed.Code != runnerscripts.FailUnknownAgent || !errors.Is(err, ErrConfig) {
		t.Errorf("an unknown agent: %v", err)
	}
	cfg.Agent.Name = "script"
	cfg.Sandbox = withBlock(cfg.Sandbox, func(p *modal.Provider) { p.Dockerfile = []string{"RUN exit 4"} })
	if _, err := Create(t.Context(), cfg); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), advice) {
		t.Errorf("an instruction that fails: %v", err)
	}
	cfg.Sandbox = withBlock(cfg.Sandbox, func(p *modal.Provider) { p.Dockerfile, p.ReserveCPUs = nil, -1 })
	if _, err := Create(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "reserve_cpus: -1 is out of range; ") {
		t.Errorf("a setting that makes no sense: %v", err)
	}
}

func TestASandboxAtModalIsFoundByItsNameAndRemoved(t *testing.T) {
	box := atModal(t)
	box.Name = "a-name"
	env := create(t, Config{Sandbox: toKeep(box)})
	list, err := List(t.Context(), box)
	if err != nil || len(list) != 1 || list[0].ID != env.ID() || list[0].Name != "a-name" || !list[0].InUse || list[0].Status != primitives.StatusRunning {
		t.Errorf("the list is %+v, %v", list, err)
	}
	if found, err := GC(t.Context(), box, GCOptions{GCOptions: primitives.GCOptions{NoGrace: true}}); err != nil || len(found) > 0 {
		t.Errorf("garbage: %+v, %v", found, err)
	}
	if history, err := History(t.Context(), box, env.ID()); err != nil || len(history) > 0 {
		t.Errorf("the history of one that runs: %+v, %v", history, err)
	}
	if err := Remove(t.Context(), box, "a-name"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), box, env.ID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
	if history, err := History(t.Context(), box, env.ID()); err != nil || len(history) != 1 || history[0].Message != "terminated" {
		t.Errorf("the history: %+v, %v", history, err)
	}
	if err := env.Healthy(t.Context()); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("it is %v", err)
	}
}

func TestWithoutATokenASandboxAtModalIsRefusedWithAdvice(t *testing.T) {
	box := atModal(t)
	for name, unset := range map[string]string{"missing": "", "wrong": "as-wrong"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MODAL_TOKEN_SECRET", unset)
			if unset == "" {
				t.Setenv("MODAL_TOKEN_ID", "")
			}
			_, err := Create(t.Context(), Config{Sandbox: box})
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET") {
				t.Errorf("Create: %v", err)
			}
			if _, err := List(t.Context(), box); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("List: %v", err)
			}
		})
	}
}

// TestAllOfModalsSettingsCanBeConfigured sets every setting that has a name in JSON.
func TestAllOfModalsSettingsCanBeConfigured(t *testing.T) {
	cfg, err := ParseConfig([]byte(`
sandbox:
  type: modal
  image: python:3.13
  modal:
    app: my-app
    environment: dev
    profile: work
    dockerfile: [RUN pip install pytest]
    secrets: [api-keys]
    volumes: {/data: my-volume}
    reserve_cpus: 0.5
    reserve_memory: 512MiB
    gpu: T4
    cloud: aws
    regions: [us-east]
    allow_cidrs: [10.0.0.0/8]
    allow_domains: ["*.example.com"]
    ready: {port: 8080, timeout: 90s}
    timeout: 10m
`))
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(cfg.Sandbox.Provider).Elem()
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" && v.Field(i).IsZero() {
			t.Errorf("%s is not set", f.Name)
		}
	}
}
