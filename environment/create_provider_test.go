package environment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
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

func TestPathsOfAFileAreRelativeToIt(t *testing.T) {
	conf := t.TempDir()
	load := func(sandbox string) Sandbox {
		t.Helper()
		name := filepath.Join(conf, "env.yaml")
		if err := os.WriteFile(name, []byte("sandbox: "+sandbox+"\nrunner: bin/envrunner\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := LoadConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(conf, "bin/envrunner"); cfg.Runner != want {
			t.Errorf("the runner is %q, want %q", cfg.Runner, want)
		}
		return cfg.Sandbox
	}
	inContainer := load("{type: docker, image: x, workspace: src, docker: {seccomp: profile.json, mounts: [{source: data, target: /data}]}}")
	here := load("{type: local, workspace: src, local: {root: boxes}}")
	for want, got := range map[string][]string{
		"src": {inContainer.Workspace, here.Workspace}, "profile.json": {inContainer.Docker.Seccomp},
		"data": {inContainer.Docker.Mounts[0].Source}, "boxes": {here.Local.Root},
	} {
		for _, path := range got {
			if path != filepath.Join(conf, want) {
				t.Errorf("%s became %q", want, path)
			}
		}
	}
	if at := load("{type: modal, workspace: /src}"); at.Workspace != "/src" {
		t.Errorf("a path at Modal became %q", at.Workspace)
	}
}

// oneFile is the same for all types. The type, and the settings of that type that the tests
// need, are filled in.
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

// TestOneFileIsOfEveryType: a type that cannot do what a setting says refuses it by name, and
// no setting is without an effect.
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
			cfg.Sandbox.Local, cfg.Sandbox.Docker, cfg.Sandbox.Modal, cfg.Sandbox.SSH = box.Local, box.Docker, box.Modal, box.SSH
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

// expectPort makes a sandbox and expects that this port of it, and no other, can be reached.
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
