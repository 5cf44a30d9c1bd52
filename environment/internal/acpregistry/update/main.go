// Update writes the catalog of package acpregistry from a checkout of the registry of the Agent
// Client Protocol. It asks npm for the names of programs, which the registry does not have:
//
//	git clone https://github.com/agentclientprotocol/registry
//	ACP_REGISTRY=$PWD/registry go generate ./environment/internal/acpregistry
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/acpregistry"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ACP_REGISTRY=CHECKOUT go generate ./environment/internal/acpregistry")
		os.Exit(2)
	}
	if err := update(context.Background(), os.Args[1], os.Args[2], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "update:", err)
		os.Exit(1)
	}
}

// update writes the catalog of the checkout's last commit into a file. It reports to warn what it
// leaves out.
func update(ctx context.Context, checkout, file string, warn io.Writer) error {
	c, err := read(ctx, checkout, warn)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(c); err != nil {
		return err
	}
	if _, err := acpregistry.Parse(text.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// read returns the catalog of a checkout. The agents of the folder _not_yet_unsupported count too:
// the registry keeps them apart because editors cannot log in to them.
func read(ctx context.Context, checkout string, warn io.Writer) (acpregistry.Catalog, error) {
	git := func(args ...string) (string, error) {
		return output(ctx, "git", append([]string{"-C", checkout}, args...)...)
	}
	var c acpregistry.Catalog
	head, err := git("log", "-1", "--format=%H %cs")
	if err != nil {
		return c, err
	}
	c.Commit, c.Date, _ = strings.Cut(strings.TrimSpace(head), " ")
	files, err := git("ls-tree", "-r", "--name-only", c.Commit)
	if err != nil {
		return c, err
	}
	for name := range strings.FieldsSeq(files) {
		if path.Base(name) != "agent.json" {
			continue
		}
		text, err := git("show", c.Commit+":"+name)
		if err != nil {
			return c, err
		}
		a, err := convert(ctx, []byte(text))
		if err == nil {
			err = a.Check()
		}
		if ctx.Err() != nil {
			return c, err
		}
		if err != nil {
			fmt.Fprintf(warn, "left out: %s: %v\n", name, err)
			continue
		}
		c.Agents = append(c.Agents, a)
	}
	slices.SortFunc(c.Agents, func(a, b acpregistry.Agent) int { return strings.Compare(a.ID, b.ID) })
	return c, nil
}

// start is how the registry says that a program is started.
type start struct {
	Args []string          `json:"args"`
	Env  map[string]string `json:"env"`
}

func (s start) equal(o start) bool { return slices.Equal(s.Args, o.Args) && maps.Equal(s.Env, o.Env) }

// pkg is a package of npm or PyPI.
type pkg struct {
	start
	Package string `json:"package"`
}

// registered is the part of an agent.json that the catalog needs.
type registered struct {
	ID           string `json:"id"`
	Version      string `json:"version"`
	Distribution struct {
		NPX    *pkg `json:"npx"`
		UVX    *pkg `json:"uvx"`
		Binary map[string]struct {
			start
			Archive string `json:"archive"`
			Cmd     string `json:"cmd"`
		} `json:"binary"`
	} `json:"distribution"`
}

// convert returns an agent of the registry. A package of npm counts before one of PyPI, and that
// before archives, because a package is installed at its exact version.
func convert(ctx context.Context, text []byte) (acpregistry.Agent, error) {
	var r registered
	if err := json.Unmarshal(text, &r); err != nil {
		return acpregistry.Agent{}, err
	}
	a := acpregistry.Agent{ID: r.ID, Version: r.Version}
	switch d := r.Distribution; {
	case d.NPX != nil:
		program, err := programOf(ctx, d.NPX.Package)
		if err != nil {
			return a, err
		}
		a.Program, a.Args, a.Env, a.NPM = program, d.NPX.Args, d.NPX.Env, d.NPX.Package
	case d.UVX != nil:
		a.Program, a.Args, a.Env, a.UVX = nameOf(d.UVX.Package), d.UVX.Args, d.UVX.Env, d.UVX.Package
	default:
		var first *start
		for _, platform := range slices.Sorted(maps.Keys(d.Binary)) {
			if strings.HasPrefix(platform, "windows-") {
				continue // no sandbox runs it
			}
			b := d.Binary[platform]
			if first == nil {
				first = &b.start
				a.Program, a.Args, a.Env, a.Archives = path.Base(b.Cmd), b.Args, b.Env, map[string]string{}
			}
			if path.Base(b.Cmd) != a.Program || !b.equal(*first) {
				return a, fmt.Errorf("it is started otherwise on %s", platform)
			}
			a.Archives[platform] = b.Archive
		}
		if first == nil {
			return a, errors.New("no sandbox can run it")
		}
	}
	return a, nil
}

// nameOf returns the name of a package, without its version.
func nameOf(spec string) string {
	if at := strings.LastIndexByte(spec, '@'); at > 0 {
		return spec[:at]
	}
	name, _, _ := strings.Cut(spec, "==")
	return name
}

// programOf returns the program that npx runs for a package of npm: the only one, or that with the
// package's name. A mirror may lack the version: then it is the program of the newest one.
func programOf(ctx context.Context, spec string) (string, error) {
	var bins map[string]string
	for _, spec := range []string{spec, nameOf(spec)} {
		out, err := output(ctx, "npm", "view", "--json", "--", spec, "bin")
		if ctx.Err() != nil {
			return "", err
		}
		if err == nil && json.Unmarshal([]byte(out), &bins) == nil && len(bins) > 0 {
			break
		}
	}
	names := slices.Sorted(maps.Keys(bins))
	switch own := path.Base(nameOf(spec)); {
	case len(names) == 1:
		return names[0], nil
	case slices.Contains(names, own):
		return own, nil
	}
	return "", fmt.Errorf("npm does not say which program %s has", spec)
}

// output returns what a command prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}
