package environment

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestEverySettingOfASandboxBelongsToOneType(t *testing.T) {
	var s Sandbox
	owners := make(map[uintptr]string)
	for name, b := range backends() {
		at := reflect.ValueOf(b.settings(&s)).Pointer()
		if other, taken := owners[at]; taken {
			t.Errorf("%s and %s have the same settings", name, other)
		}
		owners[at] = name
	}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Name == "Type" {
			continue
		}
		if owners[v.Field(i).Addr().Pointer()] == "" {
			t.Errorf("Sandbox.%s belongs to no type", field.Name)
		}
	}
}

func TestEveryTypeSaysWhatMakesAndFindsItsSandboxes(t *testing.T) {
	optional := map[string]bool{"history": true, "images": true, "present": true, "reach": true}
	for name, b := range backends() {
		v := reflect.ValueOf(b)
		for i := range v.NumField() {
			if field := v.Type().Field(i).Name; v.Field(i).IsNil() && !optional[field] {
				t.Errorf("%s has no %s", name, field)
			}
		}
	}
}

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

func TestPathsOfSandboxesAreThoseOfTheConfigurationsFolder(t *testing.T) {
	for name, b := range backends() {
		s := Sandbox{Type: name}
		for _, p := range b.paths(&s) {
			*p = "here"
		}
		cfg := Config{Sandbox: s}
		cfg.resolve("/conf")
		for i, p := range b.paths(&cfg.Sandbox) {
			if *p != filepath.Join("/conf", "here") {
				t.Errorf("%s: path %d is %q", name, i, *p)
			}
		}
	}
}

func TestPathsOfAContainerMayBeRelativeToTheConfiguration(t *testing.T) {
	conf := t.TempDir()
	name := filepath.Join(conf, "env.yaml")
	text := "sandbox: {type: docker, image: x, seccomp: profile.json, workspace: src, runner: bin/envrunner, mounts: [{source: data, target: /data}]}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	d := cfg.Sandbox.Docker
	for want, got := range map[string]string{
		"profile.json": d.Seccomp, "src": d.Workspace, "bin/envrunner": d.Runner, "data": d.Mounts[0].Source,
	} {
		if got != filepath.Join(conf, want) {
			t.Errorf("%s became %q", want, got)
		}
	}
}
