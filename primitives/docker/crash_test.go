package docker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// crashVariable holds the configuration of a program that a test starts and kills.
const crashVariable = "AGENTENV_TEST_CRASH"

// insteadVariable selects what the program does instead of going through a life cycle.
const insteadVariable = "AGENTENV_TEST_CRASH_INSTEAD"

// runToCrash is the main function of that program: it goes through the life cycle of a sandbox,
// prints each step, and continues after each line that it reads.
func runToCrash(config string) int {
	ctx := context.Background()
	in := bufio.NewReader(os.Stdin)
	live := goThroughLife
	switch os.Getenv(insteadVariable) {
	case "copies":
		live = makeCopies
	case "build":
		live = buildForEver
	}
	if err := live(ctx, config, func(format string, a ...any) {
		fmt.Printf(format+"\n", a...)
		_, _ = in.ReadString('\n') // at EOF it continues to the end
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func goThroughLife(ctx context.Context, config string, reached func(string, ...any)) error {
	var cfg docker.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	s, err := newSwept(ctx, cfg)
	if err != nil {
		return err
	}
	reached("made")
	p, err := s.Exec(ctx, primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		return err
	}
	reached("running")
	d, err := s.Exec(ctx, primitives.Command{
		Args:    []string{"sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two; exit 7"},
		Durable: true,
	})
	if err != nil {
		return err
	}
	reached("durable %s", d.ID())
	other, err := docker.Attach(ctx, cfg, cfg.Name)
	if err != nil {
		return err
	}
	reached("attached")
	_, terr := s.Terminate(ctx)
	reached("terminated")
	return errors.Join(terr, p.Close(), d.Close(), other.Close(), s.Close())
}

// victim is a program that a test kills.
type victim struct {
	t    *testing.T
	name string // of its sandbox
	host string // of its engine
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  strings.Builder

	mu sync.Mutex
	id string // of its container, once that exists
}

func newVictim(t *testing.T, cfg docker.Config, env ...string) *victim {
	t.Helper()
	cfg.Name = fmt.Sprintf("agentenv-test-crash-%d-%d", os.Getpid(), time.Now().UnixNano())
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{t: t, name: cfg.Name, host: cfg.Host, cmd: exec.Command(os.Args[0])}
	v.cmd.Env = append(append(os.Environ(), crashVariable+"="+string(text)), env...)
	v.cmd.Stderr = &v.log
	v.in, err = v.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	v.out = bufio.NewReader(out)
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.kill() })
	return v
}

// kill sends SIGKILL. It may be called more than once.
func (v *victim) kill() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if found, err := testdocker.Engine(v.t).ContainerInspect(context.WithoutCancel(v.t.Context()), v.name); err == nil {
		v.id = found.ID
	}
	_ = v.cmd.Process.Kill()
}

// until lets the program continue until it prints a step. It returns the rest of the printed line,
// and false if the program ends before.
func (v *victim) until(step string) (string, bool) {
	for {
		line, err := v.out.ReadString('\n')
		if err != nil {
			return "", false
		}
		if at, more, _ := strings.Cut(strings.TrimSpace(line), " "); at == step {
			return more, true
		}
		v.goOn()
	}
}

func (v *victim) goOn() { _, _ = io.WriteString(v.in, "\n") }

// end waits for the killed program.
func (v *victim) end() {
	v.t.Helper()
	if err := v.cmd.Wait(); err == nil || v.cmd.ProcessState.Exited() {
		v.t.Errorf("it was not killed: %v: %s", err, v.log.String())
	}
}

// leavesNothing runs GC until nothing of the program is left.
func (v *victim) leavesNothing() {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		left := v.left(ctx)
		if left == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			v.t.Fatalf("after GC: %v; %s", left, v.log.String())
		}
		if _, err := (docker.Config{Provider: docker.Provider{Host: v.host}}).GC(ctx, primitives.GCOptions{}); err != nil {
			v.t.Fatal(err)
		}
	}
}

// left returns an error that describes what is left of the program, or nil.
func (v *victim) left(ctx context.Context) error {
	eng := testdocker.Engine(v.t)
	if found, err := eng.ContainerInspect(ctx, v.name); !cerrdefs.IsNotFound(err) {
		if err == nil {
			err = fmt.Errorf("container %s, %s", found.Name, found.State.Status)
		}
		return err
	}
	volumes, err := eng.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "dev.agentenv.sandbox="+v.name))})
	if err != nil || len(volumes.Volumes) > 0 {
		return fmt.Errorf("volumes %v, %w", volumes.Volumes, err)
	}
	if err := v.leftForks(ctx); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	if links, err := filepath.Glob(filepath.Join(cache, "agentenv", "link", v.name+"*")); err != nil || len(links) > 0 {
		return fmt.Errorf("links %q, %w", links, err)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil || v.id == "" {
		return err
	}
	for _, file := range groups {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), v.id) {
			return fmt.Errorf("a process, %s", file)
		}
	}
	return nil
}

// TestAProgramThatIsKilledLeavesNothing kills the program when the engine gets a request, and
// between requests.
func TestAProgramThatIsKilledLeavesNothing(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.ReadOnly = true // so that there is a volume
	cfg.Grace = 1 * time.Second
	bystander := newVictim(t, cfg)
	if _, ok := bystander.until("running"); !ok {
		t.Fatal(bystander.log.String())
	}
	t.Run("at", func(t *testing.T) {
		var all sync.WaitGroup // more than t.Parallel would run at once: they mostly wait
		defer all.Wait()
		for name, at := range map[string]struct {
			after, request string // the request to die at after a step; or the step itself
		}{
			"create":          {"", "POST /containers/create"},
			"attach":          {"", "POST /containers/[^/]+/attach"},
			"start":           {"", "POST /containers/[^/]+/start"},
			"handshake":       {"made", ""},
			"exec":            {"running", ""},
			"durable exec":    {"durable", ""},
			"attach, exec":    {"durable", "POST /containers/[^/]+/exec"},
			"attach, start":   {"durable", "POST /exec/[^/]+/start"},
			"attached":        {"attached", ""},
			"terminate, mark": {"attached", "POST /containers/[^/]+/exec"},
			"terminate":       {"attached", "DELETE /containers/[^/]+"},
			"terminated":      {"terminated", ""},
		} {
			all.Go(func() {
				t.Run(name, func(t *testing.T) { killAt(t, cfg, at.after, at.request) })
			})
		}
	})
	for range 4 {
		bystander.goOn()
	}
	if _, err := io.Copy(io.Discard, bystander.out); err != nil {
		t.Error(err)
	}
	if err := bystander.cmd.Wait(); err != nil {
		t.Errorf("a program whose sandbox was not to be touched: %v: %s", err, bystander.log.String())
	}
}

// killAt starts a program and kills it at a request after a step, or at the step.
func killAt(t *testing.T, cfg docker.Config, after, request string) {
	killedAt(t, cfg, after, request).leavesNothing()
}

// killedAt is killAt without the check for what is left.
func killedAt(t *testing.T, cfg docker.Config, after, request string, env ...string) *victim {
	proxy := testdocker.NewProxy(t)
	cfg.Host = proxy.Host()
	var armed atomic.Bool
	armed.Store(after == "")
	hit := make(chan struct{})
	var once sync.Once
	started := make(chan *victim, 1)
	if request != "" {
		form := regexp.MustCompile(`^` + strings.Replace(request, " ", ` (/v[0-9.]+)?`, 1) + `(\?|$)`)
		proxy.Before(func(method, path string) {
			if armed.Load() && form.MatchString(method+" "+path) {
				once.Do(func() {
					close(hit) // close hit first: the test checks it after the program's end
					(<-started).kill()
				})
			}
		})
	}
	v := newVictim(t, cfg, env...)
	started <- v
	if after != "" {
		if _, ok := v.until(after); !ok {
			t.Fatalf("it ended before it was %s: %v: %s", after, v.cmd.Wait(), v.log.String())
		}
	}
	armed.Store(true)
	if request == "" {
		v.kill()
	} else {
		v.goOn()
		for ok := true; ok; {
			_, ok = v.until("never") // it is killed
		}
		select {
		case <-hit:
		default:
			t.Errorf("there was no %s: %s", request, v.log.String())
		}
	}
	v.end()
	return v
}

func TestADurableCommandOutlivesItsProgram(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Grace = 60 * time.Second
	v := newVictim(t, cfg)
	id, ok := v.until("durable")
	if !ok {
		t.Fatal(v.log.String())
	}
	v.kill()
	v.end()
	if _, err := (docker.Config{}).GC(t.Context(), primitives.GCOptions{}); err != nil {
		t.Error(err)
	}
	s, err := docker.Attach(t.Context(), docker.Config{}, v.name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := s.Terminate(t.Context()); errors.Join(err, s.Close()) != nil {
			t.Error(err)
		}
		v.leavesNothing()
	}()
	if err := s.WriteFile(t.Context(), "go", strings.NewReader(""), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, from := range []int64{0, 2, 4, 8} { // the first one waits for the whole output
		want := "one\ntwo\n"[from:]
		p, err := s.Reattach(t.Context(), id, primitives.Offset{Stdout: from})
		if err != nil {
			t.Fatal(err)
		}
		got, rerr := io.ReadAll(p.Stdout())
		status, werr := p.Wait(t.Context())
		if err := errors.Join(rerr, werr, p.Close()); err != nil || string(got) != want || status.Code != 7 {
			t.Errorf("from %d: %q, %+v, %v", from, got, status, err)
		}
	}
}

// TestTwoHandlesTerminateAtOnce covers engines that keep half of a container.
func TestTwoHandlesTerminateAtOnce(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	eng := testdocker.Engine(t)
	for range 3 {
		s := open(t, cfg)
		handles := []*guest.Sandbox{s}
		for range 2 {
			other, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, other)
		}
		found, err := eng.ContainerInspect(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, h := range handles {
			all.Go(func() {
				if _, err := h.Terminate(t.Context()); err != nil {
					t.Error(err)
				}
				if state, err := h.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
					t.Errorf("Poll: %+v, %v", state, err)
				}
			})
		}
		all.Wait()
		for _, h := range handles[1:] {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
		left, err := eng.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("id", found.ID))})
		if err != nil || len(left) > 0 {
			t.Errorf("left: %+v, %v", left, err)
		}
		history, err := (docker.Config{}).History(t.Context(), found.ID)
		if err != nil || !slices.ContainsFunc(history, func(i primitives.Incident) bool { return strings.HasPrefix(i.Message, "terminated by") }) {
			t.Errorf("the history does not say that it was terminated: %+v, %v", history, err)
		}
	}
}
