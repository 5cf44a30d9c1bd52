package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// listTimeout is how long listing one type may take when all types are listed: an engine that
// does not answer must not hide the sandboxes of other types.
const listTimeout = 5 * time.Second

// listOneTimeout is how long listing the one type that the user named may take: a login
// over ssh takes seconds on a busy machine.
const listOneTimeout = 30 * time.Second

// choices returns the sandbox settings to search: those of the chosen type, or of every type
// that this machine is set up for.
func choices(chosen environment.Sandbox) []environment.Sandbox {
	if chosen.Type != "" {
		return []environment.Sandbox{chosen}
	}
	var all []environment.Sandbox
	for _, typ := range environment.InstalledTypes() {
		all = append(all, environment.Sandbox{Type: typ})
	}
	return all
}

// listAll lists the sandboxes of several types, oldest first. If some types cannot be listed, it
// returns the sandboxes of the others with an error.
func listAll(ctx context.Context, from []environment.Sandbox) ([]environment.SandboxInfo, error) {
	patience := listTimeout
	if len(from) == 1 {
		patience = listOneTimeout
	}
	lists := make([][]environment.SandboxInfo, len(from))
	errs := make([]error, len(from))
	var asking sync.WaitGroup
	for i, s := range from {
		asking.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			lists[i], errs[i] = environment.List(bounded, s)
			if errors.Is(errs[i], context.DeadlineExceeded) && ctx.Err() == nil {
				errs[i] = fmt.Errorf("%w: no %s sandboxes are listed: there was no answer within %v; 'envctl doctor' says more",
					primitives.ErrUnavailable, s.Type, patience)
			}
		})
	}
	asking.Wait()
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b environment.SandboxInfo) int { return a.Created.Compare(b.Created) })
	return all, errors.Join(errs...)
}

// attach attaches to the sandbox with this ID or name, or with this prefix of the ID.
func (t *target) attach(ctx context.Context, id string) (*environment.Environment, error) {
	cfg, found, err := t.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	return environment.Attach(ctx, cfg, found.id)
}

// locate finds a sandbox and returns the configuration to attach to it.
func (t *target) locate(ctx context.Context, id string) (environment.Config, location, error) {
	cfg, err := t.load(ctx)
	if err != nil {
		return cfg, location{}, err
	}
	found, err := find(ctx, cfg.Sandbox, id)
	if err == nil {
		cfg.Sandbox = found.sandbox
	}
	return cfg, found, err
}

// location is a sandbox that was found.
type location struct {
	sandbox environment.Sandbox
	id      string
	inUse   bool // its owner still runs
	status  primitives.Status
	session string              // the ID of its session
	models  runnerscripts.Usage // what its agent has used
	name    string
	info    environment.SandboxInfo
}

// is reports whether word is the ID or the name of the sandbox, and not just a prefix of its ID.
func (l location) is(word string) bool { return word != "" && (word == l.id || word == l.name) }

// whereFlag returns the --sandbox flag, followed by a space, that a command needs to find the
// sandbox by its ID. It returns "" for types that are always searched.
func whereFlag(s environment.Sandbox) string {
	if slices.Contains(environment.InstalledTypes(), s.Type) {
		return ""
	}
	return "--sandbox " + s.Word() + " "
}

// locations returns the locations of listed sandboxes.
func locations(from []environment.Sandbox, list []environment.SandboxInfo) []location {
	found := make([]location, 0, len(list))
	for _, info := range list {
		i := slices.IndexFunc(from, func(s environment.Sandbox) bool { return s.Type == info.Type })
		found = append(found, location{from[i], info.ID, info.InUse, info.Status, info.SessionID, info.Usage, info.Name, info})
	}
	return found
}

// all returns all sandboxes. If some types cannot be listed, it returns the sandboxes of the
// others with an error.
func all(ctx context.Context, chosen environment.Sandbox) ([]location, error) {
	from := choices(chosen)
	list, err := listAll(ctx, from)
	return locations(from, list), err
}

// errNoSandbox is the error for an ID without a sandbox.
var errNoSandbox = errors.New("no sandbox")

// find returns the sandbox with this ID or name, or the only one whose ID has this prefix.
func find(ctx context.Context, chosen environment.Sandbox, id string) (location, error) {
	from := choices(chosen)
	// The sandboxes of this machine can be listed without an engine.
	if len(from) > 1 {
		list, _ := environment.List(ctx, from[0]) // listAll reports the error again
		for n, at := range locations(from, list) {
			if at.id == id || list[n].Name == id && id != "" {
				return at, nil
			}
		}
	}
	list, failed := listAll(ctx, from)
	if ctx.Err() != nil {
		return location{}, ctx.Err()
	}
	var found []environment.SandboxInfo
	for _, info := range list {
		if info.ID == id || info.Name == id && id != "" {
			found = []environment.SandboxInfo{info}
			break
		}
		if id != "" && (strings.HasPrefix(info.ID, id) || strings.HasPrefix(info.ID, idPrefix+id)) {
			found = append(found, info)
		}
	}
	switch {
	case len(found) == 0 && failed != nil:
		return location{}, fmt.Errorf("no sandbox %q among those that could be asked for: %w", id, failed)
	case len(found) == 0:
		return location{}, fmt.Errorf("%w %q%s; 'envctl ls' shows those there are", errNoSandbox, id, ofType(from))
	case len(found) > 1:
		return location{}, fmt.Errorf("%q is the beginning of several IDs: %s; give more of it", id, ids(found))
	}
	return locations(from, found)[0], nil
}

// idPrefix starts the IDs of containers. It may be left out.
const idPrefix = "agentenv-"

// ofType returns words with the type, if only one type was searched.
func ofType(from []environment.Sandbox) string {
	if len(from) == 1 {
		return " of the type " + from[0].Type
	}
	return ""
}

func ids(list []environment.SandboxInfo) string {
	var names []string
	for _, info := range list {
		names = append(names, info.ID)
	}
	return strings.Join(names, ", ")
}

// completeIDs completes the IDs of sandboxes, for the first most arguments. Zero means all
// arguments.
func (t *target) completeIDs(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		t.app.findServer(cmd)
		if t.app.refuseServer(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		cfg, err := t.load(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), listTimeout)
		defer cancel()
		list, _ := listAll(ctx, choices(cfg.Sandbox)) // skip types that do not answer
		var ids []cobra.Completion
		for _, info := range list {
			if !slices.Contains(args, info.ID) {
				ids = append(ids, cobra.CompletionWithDesc(info.ID, visible.Line(describe(info))))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// describe returns a short description of a sandbox.
func describe(info environment.SandboxInfo) string {
	return strings.Join(slices.DeleteFunc([]string{info.Name, info.Agent, info.Type, shortImage(info.Image), string(info.Status)}, func(s string) bool { return s == "" }), " ")
}
