package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// exchange swaps two names.
func exchange(t *testing.T, a, b string) {
	t.Helper()
	aside := a + ".aside"
	if err := errors.Join(os.Rename(a, aside), os.Rename(b, a), os.Rename(aside, b)); err != nil {
		t.Error(err)
	}
}

func mkdirs(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func symlink(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// noContainersOf fails the test if a container with a label of the test exists.
func noContainersOf(t *testing.T, label string) {
	t.Helper()
	list, err := testdocker.Engine(t).ContainerList(t.Context(), container.ListOptions{All: true, Filters: ofThisRun()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Labels["agentenv-test-of"] == label {
			t.Errorf("container %s is left, %s", c.Names, c.Status)
		}
	}
}

// marked returns a configuration whose containers noContainersOf finds.
func marked(t *testing.T, cfg docker.Config) docker.Config {
	t.Helper()
	labels := map[string]string{"agentenv-test-of": t.Name()}
	for k, v := range cfg.Labels {
		labels[k] = v
	}
	cfg.Labels = labels
	return cfg
}

func TestAFolderThatIsExchangedWhileTheContainerIsMadeIsRefused(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"/containers/create", "/start"} {
		for name, with := range map[string]func(t *testing.T, other, place string){
			"for a link":   symlink,
			"for a folder": func(t *testing.T, other, place string) { t.Helper(); exchangeable(t, other, place) },
		} {
			for _, kind := range []string{"workspace", "mount", "read-only mount"} {
				t.Run(strings.Join([]string{at[1:], name, kind}, ", "), func(t *testing.T) {
					t.Parallel()
					dir, victim := t.TempDir(), t.TempDir()
					writeFile(t, filepath.Join(victim, "secret"), "s")
					sub, other := filepath.Join(dir, "sub"), filepath.Join(dir, "other")
					mkdirs(t, sub)
					with(t, victim, other)
					p := testdocker.NewProxy(t)
					var once sync.Once
					p.Before(func(_, path string) {
						if strings.Contains(path, at) {
							once.Do(func() { exchange(t, sub, other) })
						}
					})
					cfg := marked(t, config(t, testdocker.Busybox(t)))
					cfg.Host = p.Host()
					if kind == "workspace" {
						cfg.Workspace = sub
					} else {
						cfg.Mounts = []docker.Mount{{Source: sub, Target: "/m", ReadOnly: kind != "mount"}}
					}
					s, err := docker.New(t.Context(), cfg)
					if err == nil {
						t.Errorf("it has %s", output(t, s, "sh", "-c", "ls /workspace /m 2>&1"))
						_, terr := s.Terminate(t.Context())
						t.Fatal("mounted", terr, s.Close())
					}
					if !errors.Is(err, docker.ErrFolderChanged) || !strings.Contains(err.Error(), map[bool]string{true: "workspace", false: "mounts[0]"}[kind == "workspace"]) {
						t.Errorf("New: %v", err)
					}
					noContainersOf(t, t.Name())
					if list, err := os.ReadDir(victim); err != nil || len(list) > 1 {
						t.Errorf("the other folder holds %v, %v", list, err)
					}
				})
			}
		}
	}
}

// exchangeable makes a folder at place with files of the same names as in other.
func exchangeable(t *testing.T, other, place string) {
	t.Helper()
	mkdirs(t, place)
	list, err := os.ReadDir(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		writeFile(t, filepath.Join(place, e.Name()), "x")
	}
}

func TestAForkOnlyMountsTheFoldersOfItsSandbox(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // in the container, of /p/data, which is mounted at /data, too
		ok     bool
	}{
		"as they are":  {"true", true},
		"a link":       {"mv /p/data /p/old; ln -s VICTIM /p/data", false},
		"a folder":     {"mv /p/data /p/old; mkdir /p/data", false},
		"nothing":      {"mv /p/data /p/old", false},
		"a way around": {"mv /p/in /p/old; mkdir /p/else; mkdir /p/else/data; ln -s else /p/in", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, victim := t.TempDir(), t.TempDir()
			mkdirs(t, filepath.Join(dir, "data"), filepath.Join(dir, "in", "data"))
			cfg := marked(t, config(t, testdocker.Busybox(t)))
			cfg.Mounts = []docker.Mount{
				{Source: dir, Target: "/p"},
				{Source: filepath.Join(dir, "data"), Target: "/data"},
				{Source: filepath.Join(dir, "in", "data"), Target: "/in"},
			}
			s := open(t, cfg)
			output(t, s, "sh", "-ec", strings.ReplaceAll(c.change, "VICTIM", victim))
			copies, err := s.Fork(t.Context(), 1)
			if err == nil {
				_, terr := copies[0].Terminate(t.Context())
				if err := errors.Join(terr, copies[0].Close()); err != nil {
					t.Error(err)
				}
			}
			switch {
			case c.ok && err != nil, !c.ok && !errors.Is(err, docker.ErrFolderChanged):
				t.Errorf("Fork: %v", err)
			}
			again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
			if err != nil {
				t.Fatal("Attach:", err) // its mounts are unchanged
			}
			if _, err := again.Fork(t.Context(), 1); !c.ok && !errors.Is(err, docker.ErrFolderChanged) {
				t.Errorf("Fork of an attached sandbox: %v", err)
			} else if c.ok && err != nil {
				t.Error(err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
			endForks(t, s.ID())
		})
	}
}

// endForks ends the copies of a sandbox.
func endForks(t *testing.T, of string) {
	t.Helper()
	list, err := (docker.Config{}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eng := testdocker.Engine(t)
	for _, info := range list {
		found, err := eng.ContainerInspect(t.Context(), info.ID)
		if err != nil || found.Config.Labels["dev.agentenv.fork"] != of {
			continue
		}
		s, err := docker.Attach(t.Context(), docker.Config{}, info.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Terminate(t.Context())
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestAttachLooksAtWhatIsMounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	mkdirs(t, data)
	cfg := config(t, testdocker.Busybox(t))
	cfg.Mounts = []docker.Mount{{Source: dir, Target: "/p"}, {Source: data, Target: "/p/data"}}
	s := open(t, cfg)
	again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
	if err := errors.Join(err, again.Close()); err != nil {
		t.Fatal(err)
	}
	// The mount moves with the folder, and another folder takes its name.
	if err := os.Rename(data, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	mkdirs(t, data)
	if _, err := docker.Attach(t.Context(), docker.Config{}, s.ID()); !errors.Is(err, docker.ErrFolderChanged) {
		t.Errorf("Attach: %v", err)
	}
}

func TestAFolderIsNamedItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mkdirs(t, filepath.Join(dir, "real", "sub"))
	symlink(t, "real", filepath.Join(dir, "link"))
	cfg := config(t, testdocker.Busybox(t))
	cfg.Workspace = filepath.Join(dir, "link")
	if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link: %v", err)
	}
	cfg.Workspace = filepath.Join(dir, "link", "sub")
	s := open(t, cfg)
	output(t, s, "touch", "made")
	if _, err := os.Stat(filepath.Join(dir, "real", "sub", "made")); err != nil {
		t.Error(err)
	}
}

// imageAfter runs a command in a new container of an image and commits the container to an image.
func imageAfter(t *testing.T, from, command string) string {
	t.Helper()
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: from, Cmd: []string{"sh", "-ec", command}, Labels: testdocker.Labels()}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, container.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}()
	exited, failed := eng.ContainerWait(t.Context(), made.ID, container.WaitConditionNextExit)
	if err := eng.ContainerStart(t.Context(), made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-exited:
	case err := <-failed:
		t.Fatal(err)
	}
	return committedFrom(t, made.ID)
}

func TestAnImageCannotMakeTheEngineWriteIntoAFolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		image string // the command that makes the image
		ok    bool
	}{
		"the guest's folder is a link":            {"ln -s /workspace /agentenv", false},
		"the guest's folder is a link to a mount": {"ln -s m/x /agentenv", false},
		"the runner is a link":                    {"mkdir /agentenv; ln -s /workspace/run /agentenv/envrunner", false},
		"the folder of the socket is a link":      {"mkdir /agentenv; ln -s ../workspace /agentenv/link", false},
		"a target is below a link":                {"mkdir -p /srv; ln -s /workspace /srv/data", false},
		"a target is below a link that is below":  {"mkdir -p /real; ln -s ../m /real/data; ln -s real /srv", false},
		"a target is below a link of the system":  {"mkdir -p /real; ln -s real /srv", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := marked(t, config(t, imageAfter(t, testdocker.Busybox(t), c.image)))
			workspace, other, third := t.TempDir(), t.TempDir(), t.TempDir()
			cfg.Workspace = workspace
			cfg.Mounts = []docker.Mount{{Source: other, Target: "/m"}, {Source: third, Target: "/srv/data/x"}}
			for range 2 { // the second time the image is known
				s, err := docker.New(t.Context(), cfg)
				if err == nil {
					output(t, s, "touch", "/srv/data/x/made")
					_, terr := s.Terminate(t.Context())
					err = errors.Join(terr, s.Close())
				}
				if c.ok && err != nil || !c.ok && (!errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "symbolic link")) {
					t.Errorf("New: %v", err)
				}
			}
			for _, dir := range []string{workspace, other} {
				if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
					t.Errorf("the engine has made %v, %v", list, err)
				}
			}
			noContainersOf(t, t.Name())
		})
	}
}

func TestAnImageCannotPutAVolumeIntoAFolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		links  string // the command that makes the links
		volume string
		ok     bool
	}{
		"below a folder":             {"true", "/workspace/made", false},
		"below a mount":              {"true", "/m/made/below", false},
		"below a folder, by a link":  {"ln -s / /root2", "/root2/workspace/made", false},
		"by a link to a folder":      {"ln -s workspace/made /data", "/data", false},
		"at a folder":                {"true", "/workspace", true},
		"at a mount below a folder":  {"true", "/workspace/cache", true},
		"beside a folder":            {"true", "/workspace2", true},
		"above a folder":             {"true", "/srv", true},
		"elsewhere, by another link": {"mkdir /real; ln -s real /data", "/data/x", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := marked(t, config(t, committed(t, imageAfter(t, testdocker.Busybox(t), c.links), "VOLUME "+c.volume)))
			workspace, other, third := t.TempDir(), t.TempDir(), t.TempDir()
			mkdirs(t, filepath.Join(workspace, "cache"))
			cfg.Workspace = workspace
			cfg.Mounts = []docker.Mount{{Source: other, Target: "/m"}, {Source: third, Target: "/srv/data"}, {Source: third, Target: "/workspace/cache"}}
			s, err := docker.New(t.Context(), cfg)
			if err == nil {
				_, terr := s.Terminate(t.Context())
				err = errors.Join(terr, s.Close())
			}
			if c.ok && err != nil || !c.ok && !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("New: %v", err)
			}
			for dir, want := range map[string]int{workspace: 1, other: 0, third: 0} {
				if list, err := os.ReadDir(dir); err != nil || len(list) != want {
					t.Errorf("the engine has made %v, %v", list, err)
				}
			}
			noContainersOf(t, t.Name())
		})
	}
}

func TestAnImageIsNoSnapshotBecauseItSaysSo(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	snapshot, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (docker.Config{}).RemoveSnapshot(context.WithoutCancel(t.Context()), snapshot); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		from, label string
		ok          bool
	}{
		"a fork":                   {testdocker.Busybox(t), "dev.agentenv.fork=x", false},
		"a folder":                 {testdocker.Busybox(t), "dev.agentenv.folder=x", false},
		"a snapshot without name":  {testdocker.Busybox(t), "dev.agentenv.snapshot=agentenv-snapshot:gone", false},
		"a snapshot by its name":   {testdocker.Busybox(t), "dev.agentenv.snapshot=" + snapshot, false},
		"built on a snapshot":      {snapshot, "mine=yes", true},
		"with another folder":      {snapshot, "dev.agentenv.folder=other", false},
		"a fork that is one, too":  {snapshot, "dev.agentenv.fork=x", false},
		"with another snapshot's":  {snapshot, "dev.agentenv.snapshot=agentenv-snapshot:gone", false},
		"not at all, but was once": {testdocker.Busybox(t), "dev.agentenv.folder=", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := docker.New(t.Context(), config(t, committed(t, c.from, "LABEL "+c.label)))
			if err == nil {
				_, terr := s.Terminate(t.Context())
				err = errors.Join(terr, s.Close())
			}
			if c.ok && err != nil || !c.ok && (!errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "image: its labels")) {
				t.Errorf("New: %v", err)
			}
		})
	}
}
