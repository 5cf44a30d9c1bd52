package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// inContainer is the configuration of a container with Claude Code in it.
func inContainer(t *testing.T, image string) Config {
	return Config{
		Agent: Agent{Name: "claude"},
		Sandbox: Sandbox{Type: "docker", Docker: docker.Config{
			Image: image, Pull: docker.PullNever, Runner: testdocker.Runner(t),
			Network: "none", Labels: testdocker.Labels(), GraceSeconds: 10,
		}},
	}
}

// base builds an image upon busybox that goes with the test, together with what
// was built upon it.
func base(t *testing.T, instructions string) string {
	t.Helper()
	engine := docker.Config{Image: testdocker.Busybox(t), Pull: docker.PullNever}
	img, err := docker.BuildImage(t.Context(), engine, docker.Build{
		Name: "agentenv-test-base", Labels: testdocker.Labels(),
		Instructions: instructions + "\nRUN echo " + t.Name() + " >/test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		list, err := docker.Images(ctx, engine)
		if err != nil {
			t.Error(err)
		}
		for _, i := range slices.Backward(list) { // children first
			if i.Ref == img.Ref || i.Base == img.Ref {
				if err := docker.RemoveImage(ctx, engine, i.Ref); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return img.Ref
}

func TestAnAgentThatTheImageLacksIsAddedToItOnce(t *testing.T) {
	cfg := inContainer(t, base(t, testdocker.FakeNPM))
	var mu sync.Mutex
	var told []string
	cfg.Progress = func(message string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(message, "building the image ") {
			told = append(told, message)
		}
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			env := create(t, cfg)
			res, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"claude"}}, primitives.RunOptions{})
			if err != nil || !strings.Contains(string(res.Stdout), "@anthropic-ai/claude-code@") {
				t.Errorf("claude says %q %q, %v", res.Stdout, res.Stderr, err)
			}
		})
	}
	all.Wait()
	since := time.Now()
	create(t, cfg)
	if n := containersSince(t, since); n != 1 {
		t.Errorf("one more environment took %d containers", n)
	}
	img, err := BuildImage(t.Context(), cfg)
	if err != nil || img.Base != cfg.Sandbox.Docker.Image || img.Agent != "claude" || img.Version == "" {
		t.Errorf("the image: %+v, %v", img, err)
	}
	if len(told) != 1 {
		t.Errorf("told %q", told)
	}
	list, err := Images(t.Context(), cfg.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(list, func(i Image) bool { return i.Ref == img.Ref }); i < 0 || !list[i].InUse {
		t.Errorf("the list is %+v", list)
	}
	if err := RemoveImage(t.Context(), cfg.Sandbox, img.Ref); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an image in use: %v", err)
	}
}

// containersSince counts the containers that the tests have made since then.
func containersSince(t *testing.T, since time.Time) (n int) {
	t.Helper()
	stamp := func(at time.Time) string { return fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond()) }
	args := filters.NewArgs(filters.Arg("type", "container"), filters.Arg("event", "create"))
	for key, value := range testdocker.Labels() {
		args.Add("label", key+"="+value)
	}
	made, ended := testdocker.Engine(t).Events(t.Context(), events.ListOptions{
		Since: stamp(since), Until: stamp(time.Now()), Filters: args,
	})
	for {
		select {
		case <-made:
			n++
		case err := <-ended:
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			return n
		}
	}
}

func TestAnImageThatHasTheAgentIsUsedAsItIs(t *testing.T) {
	cfg := inContainer(t, base(t, "RUN echo '#!/bin/sh' >/bin/claude && busybox chmod +x /bin/claude"))
	env := create(t, cfg)
	if _, err := env.Primitive().Stat(t.Context(), "/test"); err != nil {
		t.Error(err)
	}
	if img, err := BuildImage(t.Context(), cfg); !errors.Is(err, fs.ErrExist) {
		t.Errorf("built %+v, %v", img, err)
	}
	nothingBuiltOn(t, cfg)
}

func TestAnImageThatAnAgentCannotBeAddedToIsRefused(t *testing.T) {
	cfg := inContainer(t, testdocker.Busybox(t))
	_, err := Create(t.Context(), cfg)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "lacks claude and apt-get and npm") {
		t.Errorf("got %v", err)
	}
	cfg.Agent.Name = "hal9000"
	_, err = Create(t.Context(), cfg)
	var failed *ScriptError
	if !errors.As(err, &failed) || failed.Failure == nil || failed.Failure.Code != runnerscripts.FailUnknownAgent {
		t.Errorf("an unknown agent: %v", err)
	}
	cfg.Agent.Name = "script" // which needs nothing
	create(t, cfg)
	nothingBuiltOn(t, cfg)
}

func TestAnAgentThatCannotBeInstalledIsAnErrorWithWhatWasSaid(t *testing.T) {
	cfg := inContainer(t, base(t, strings.Replace(testdocker.FakeNPM, `printf "#!/bin/sh`, `echo no such package; exit 4; printf "#!/bin/sh`, 1)))
	_, err := Create(t.Context(), cfg)
	var failed *docker.BuildError
	if !errors.As(err, &failed) || failed.Code != 4 || failed.Output != "no such package" {
		t.Errorf("got %v", err)
	}
	nothingBuiltOn(t, cfg)
}

// nothingBuiltOn fails the test if there is an image upon that of cfg.
func nothingBuiltOn(t *testing.T, cfg Config) {
	t.Helper()
	list, err := Images(t.Context(), cfg.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Base == cfg.Sandbox.Docker.Image {
			t.Errorf("there is %+v", i)
		}
	}
}

func TestOnlyProxiesThatAContainerReachesArePassedOn(t *testing.T) {
	for _, key := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(key, "")
	}
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("http_proxy", "http://127.0.0.1:3128")
	t.Setenv("no_proxy", "localhost,.example")
	got := proxies()
	if len(got) != 2 || got["HTTPS_PROXY"] != "http://proxy.example:3128" || got["no_proxy"] != "localhost,.example" {
		t.Errorf("got %v", got)
	}
}
