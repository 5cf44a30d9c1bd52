package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

func TestATypeWithoutImagesSaysSo(t *testing.T) {
	box := sandbox(t)
	if list, err := Images(t.Context(), box); !errors.Is(err, ErrConfig) {
		t.Errorf("list: %v and %v, want ErrConfig", list, err)
	}
	if err := RemoveImage(t.Context(), box, "agentenv-claude:none"); !errors.Is(err, ErrConfig) {
		t.Errorf("remove: %v, want ErrConfig", err)
	}
	if img, err := BuildImage(t.Context(), Config{Sandbox: box, Agent: Agent{Name: "claude"}}); !errors.Is(err, ErrConfig) {
		t.Errorf("build: %v and %v, want ErrConfig", img, err)
	}
}

// TestPathsOfAFileAreRelativeToIt checks the paths of this machine in the blocks of all types,
// because the type may be changed later. The workspace is such a path if it is a folder of this
// machine, or of the engine's.
func TestPathsOfAFileAreRelativeToIt(t *testing.T) {
	conf := t.TempDir()
	in := func(name string) string { return filepath.Join(conf, name) }
	for typ, workspace := range map[string]string{"local": in("src"), "docker": in("src"), "modal": "src", "ssh": "src"} {
		t.Run(typ, func(t *testing.T) {
			text := "runner: bin/envrunner\nsandbox:\n  type: " + typ + `
  workspace: src
  local: {root: boxes}
  docker: {seccomp: profile.json, writable: [.vscode], mounts: [{source: data, target: /data}, {source: /abs, target: /abs}]}
  modal: {volumes: {/data: data}}
  ssh: {host: build1, root: there}
`
			if err := os.WriteFile(in("env.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := LoadConfig(in("env.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			s := cfg.Sandbox
			for _, path := range []struct{ name, got, want string }{
				{"runner", cfg.Runner, in("bin/envrunner")},
				{"workspace", s.Workspace, workspace},
			} {
				if path.got != path.want {
					t.Errorf("%s is %q, want %q", path.name, path.got, path.want)
				}
			}
			for typ, want := range map[string]primitives.Provider{
				"local": &local.Provider{Root: in("boxes")},
				"docker": &docker.Provider{
					Seccomp: in("profile.json"), Writable: []string{".vscode"},
					Mounts: []docker.Mount{{Source: in("data"), Target: "/data"}, {Source: "/abs", Target: "/abs"}},
				},
				"modal": &modal.Provider{Volumes: map[string]string{"/data": "data"}},
				"ssh":   &ssh.Provider{Host: "build1", Root: "there"},
			} {
				if err := s.Choose(typ); err != nil || !reflect.DeepEqual(s.Provider, want) {
					t.Errorf("%s: %+v, %v; want %+v", typ, s.Provider, err, want)
				}
			}
		})
	}
}

// TestABlockKeepsItsOwnFunctions checks that the Config fills in only what a block leaves out.
func TestABlockKeepsItsOwnFunctions(t *testing.T) {
	find := func(context.Context, string, string) (string, error) { return "own", nil }
	var logged strings.Builder
	own := hclog.New(&hclog.LoggerOptions{Output: &logged})
	cfg := Config{Agent: Agent{Env: map[string]string{"API_KEY": "hunter2hunter2"}}, Runner: os.Args[0]}
	for typ, block := range map[string]func(findRunner, hclog.Logger, func(string)) primitives.Provider{
		"docker": func(f findRunner, l hclog.Logger, p func(string)) primitives.Provider {
			return &docker.Provider{Runner: f, Logger: l, Progress: p}
		},
		"local": func(f findRunner, l hclog.Logger, _ func(string)) primitives.Provider {
			return &local.Provider{Runner: f, Logger: l}
		},
		"modal": func(f findRunner, l hclog.Logger, p func(string)) primitives.Provider {
			return &modal.Provider{Runner: f, Logger: l, Progress: p}
		},
		"ssh": func(f findRunner, l hclog.Logger, p func(string)) primitives.Provider {
			return &ssh.Provider{Host: "build1", Runner: f, Logger: l, Progress: p}
		},
	} {
		for name, given := range map[string]bool{"given": true, "empty": false} {
			t.Run(typ+" "+name, func(t *testing.T) {
				told, shared := "", ""
				s := Sandbox{Type: typ, Provider: block(nil, nil, nil)}
				if given {
					s.Provider = block(find, own, func(text string) { told = text })
				}
				before := clone(s.Provider)
				cfg := cfg
				cfg.Progress = func(text string) { shared = text }
				p, err := s.provider(cfg)
				if err != nil {
					t.Fatal(err)
				}
				block := reflect.ValueOf(p).Elem()
				if !given && !reflect.DeepEqual(s.Provider, before) {
					t.Errorf("the caller's provider is now %+v", s.Provider)
				}
				runner, _ := block.FieldByName("Runner").Interface().(findRunner)
				if found, err := runner(t.Context(), "", ""); err != nil || (found == "own") != given {
					t.Errorf("the runner is %q, %v", found, err)
				}
				if f := block.FieldByName("Progress"); f.IsValid() {
					progress, _ := f.Interface().(func(string))
					if progress("x"); (told == "x") != given || (shared == "x") == given {
						t.Errorf("the block gets %q, the Config %q", told, shared)
					}
				}
				logger, _ := block.FieldByName("Logger").Interface().(hclog.Logger)
				if (logger != nil) != given {
					t.Fatalf("the logger is %v", logger)
				}
				if given {
					logged.Reset()
					logger.Info("the key is hunter2hunter2")
					if text := logged.String(); !strings.Contains(text, "the key is") || strings.Contains(text, "hunter2") {
						t.Errorf("it logs %q", text)
					}
				}
			})
		}
	}
}

// oneFile is a configuration that is the same for all types. The test fills in the type and the
// settings that the type needs.
const oneFile = `
sandbox:
  type: TYPE
  image: IMAGE
  user: "0"
  env: {GREETING: hello}
  cpus: 1
  memory: 1GiB
  network: none
  ports: [8080]
  keep: true
  grace: 2m
`

// TestOneFileIsOfEveryType checks that a type rejects a setting that it does not support by its
// name, and that no setting is ignored.
func TestOneFileIsOfEveryType(t *testing.T) {
	refused := map[string][]string{
		"local": {"image", "cpus", "memory", "network", "ports"}, "ssh": {"image", "cpus", "memory", "network", "ports"},
		"docker": nil, "modal": nil,
	}
	for typ, box := range boxes(t) {
		t.Run(typ, func(t *testing.T) {
			text := strings.NewReplacer("TYPE", typ, "IMAGE", "debian:12").Replace(oneFile)
			cfg, err := ParseConfig([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Sandbox.Provider = box.Provider
			cfg.Sandbox.Image, cfg.Sandbox.Labels = box.Image, box.Labels
			if len(refused[typ]) > 0 {
				cfg.Sandbox.Image = "debian:12"
				_, err := Create(t.Context(), cfg)
				for _, name := range refused[typ] {
					if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "sandbox."+name+": ") {
						t.Errorf("the error is %v, want errors.ErrUnsupported that names sandbox.%s", err, name)
					}
				}
				cfg.Sandbox.Image, cfg.Sandbox.CPUs, cfg.Sandbox.Memory, cfg.Sandbox.Network = "", 0, 0, ""
			} else {
				reached := cfg // there are no ports without a network
				reached.Sandbox.Network, reached.Sandbox.Keep = "", false
				expectPort(t, reached, 8080)
			}
			cfg.Sandbox.Ports = nil
			env, err := Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			id := env.ID()
			script := `echo "$GREETING $(id -u)"; ls /sys/class/net | grep -v lo | wc -l`
			r, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"sh", "-c", script}}, primitives.RunOptions{})
			if want := "hello 0\n"; err != nil || !strings.HasPrefix(string(r.Stdout), want) {
				t.Errorf("a command says %q, %v", r.Stdout, err)
			}
			if refused[typ] == nil && !strings.HasSuffix(strings.TrimSpace(string(r.Stdout)), "0") {
				t.Errorf("with network none: %q", r.Stdout)
			}
			if u, err := primitives.ReadUsage(t.Context(), env.Primitive()); typ == "docker" && (err != nil || u.MemoryLimit != 1<<30) {
				t.Errorf("memory 1GiB: %+v, %v", u, err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			list, err := List(t.Context(), cfg.Sandbox)
			kept := false
			for _, info := range list {
				kept = kept || info.ID == id && info.Kept
			}
			if err != nil || !kept {
				t.Errorf("after Close List has %+v, %v", list, err)
			}
			if err := Remove(t.Context(), cfg.Sandbox, id); err != nil {
				t.Error(err)
			}
		})
	}
}

// expectPort creates a sandbox and checks that only this port of it can be reached.
func expectPort(t *testing.T, cfg Config, number int) {
	t.Helper()
	env, err := Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	lister, ok := env.Primitive().(primitives.PortLister)
	if !ok {
		t.Fatal("it lists no ports")
	}
	if ports, err := lister.Ports(t.Context()); err != nil || len(ports) != 1 || ports[0].Number != number || ports[0].Address == "" {
		t.Errorf("ports %+v, %v", ports, err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}
