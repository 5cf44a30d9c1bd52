package environment

import (
	"bytes"
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

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// inContainer returns the configuration of a container with Claude Code in it.
func inContainer(t *testing.T, image string) Config {
	return Config{
		Agent:   Agent{Name: "claude"},
		Sandbox: Sandbox{Type: "docker", Spec: primitives.Spec{Image: image, Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever}},
	}
}

// base builds an image on busybox. The end of the test removes it, together with the images that
// were built on it.
func base(t *testing.T, command string) string {
	t.Helper()
	runner := func(context.Context, string, string) (string, error) { return testdocker.Runner(t), nil }
	engine := docker.Provider{Pull: docker.PullNever, Runner: runner}
	img, err := engine.BuildImage(t.Context(), primitives.Spec{Image: testdocker.Busybox(t), Labels: testdocker.Labels(), Install: primitives.Install{
		Program: "no-such-program", Name: "agentenv-test-base", Labels: testdocker.Labels(),
		Commands: []string{command, "echo " + t.Name() + " >/test"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		list, err := engine.Images(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, i := range slices.Backward(list) { // children first
			if i.Ref == img.Ref || i.Base == img.Ref {
				if err := engine.RemoveImage(ctx, i.Ref); err != nil {
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
	if err != nil || img.Base != cfg.Sandbox.Image || img.Agent != "claude" || img.Version == "" {
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

// containersSince counts the containers that the tests have created since a time.
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
	cfg := inContainer(t, base(t, "echo '#!/bin/sh' >/bin/claude && busybox chmod +x /bin/claude"))
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
	if failed, ok := errors.AsType[*runnerscripts.ScriptFailure](err); !ok || failed.Code != runnerscripts.FailUnknownAgent || !errors.Is(err, ErrConfig) {
		t.Errorf("an unknown agent: %v", err)
	}
	cfg.Agent.Name = "script" // the agent needs nothing
	create(t, cfg)
	nothingBuiltOn(t, cfg)
}

func TestAnAgentThatCannotBeInstalledIsAnErrorWithWhatWasSaid(t *testing.T) {
	cfg := inContainer(t, base(t, strings.Replace(testdocker.FakeNPM, `printf "#!/bin/sh`, `echo no such package; exit 4; printf "#!/bin/sh`, 1)))
	_, err := Create(t.Context(), cfg)
	var failed *docker.BuildError
	if !errors.As(err, &failed) || failed.Status.Code != 4 || failed.Output != "no such package" {
		t.Errorf("got %v", err)
	}
	nothingBuiltOn(t, cfg)
}

// nothingBuiltOn fails the test if an image was built on that of cfg.
func nothingBuiltOn(t *testing.T, cfg Config) {
	t.Helper()
	list, err := Images(t.Context(), cfg.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Base == cfg.Sandbox.Image {
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
	if got := (Config{}).install(runnerscripts.Recipe{}).BuildEnv; !slices.Equal(got, []string{"HTTPS_PROXY=http://proxy.example:3128", "no_proxy=localhost,.example"}) {
		t.Errorf("got %q", got)
	}
}

func TestAPasswordOfAProxyIsNotPassedOn(t *testing.T) {
	for proxy, want := range map[string]string{
		"http://user:secret@proxy.example:3128": "http://proxy.example:3128",
		"user:secret@proxy.example:3128":        "proxy.example:3128",
		"http://user:se/cr@et@proxy.example/":   "http://proxy.example/",
		"socks5h://secret@[2001:db8::1]:1080":   "socks5h://[2001:db8::1]:1080",
		"http://proxy.example:3128":             "http://proxy.example:3128",
		"localhost,.example":                    "localhost,.example",
	} {
		if got := withoutPassword("HTTP_PROXY=" + proxy); got != "HTTP_PROXY="+want {
			t.Errorf("%s becomes %s", proxy, got)
		}
	}
}

func TestNothingOfAnImageHoldsThePasswordOfAProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://user:pass-of-the-proxy@proxy.example:3128")
	cfg := inContainer(t, base(t, strings.Replace(testdocker.FakeNPM, `printf "#!/bin/sh`, `env >/env; cat /proc/*/environ >/environ; printf "#!/bin/sh`, 1)))
	img, err := BuildImage(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := testdocker.Engine(t).ImageSave(t.Context(), []string{img.Ref}) // with its history, uncompressed
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(saved)
	if err := errors.Join(err, saved.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte("HTTPS_PROXY=http://proxy.example:3128")) {
		t.Error("the build has no proxy")
	}
	if bytes.Contains(content, []byte("pass-of-the-proxy")) {
		t.Error("the password is in the image")
	}
}

func TestABuildThatFailsForItsNetworkSaysSo(t *testing.T) {
	fails := base(t, strings.Replace(testdocker.FakeNPM, `printf "#!/bin/sh`, `exit 4; printf "#!/bin/sh`, 1))
	t.Setenv("HTTPS_PROXY", "http://user:pass-of-the-proxy@proxy.example:3128")
	_, err := BuildImage(t.Context(), inContainer(t, fails))
	if err == nil || !strings.Contains(err.Error(), "not given the password of the proxy") || strings.Contains(err.Error(), "pass-of") {
		t.Error(err)
	}
}
