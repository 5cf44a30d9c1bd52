package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

func (a *app) newImageCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build, list and remove images with agents",
		Long: `Build, list and remove the images from which containers with agents are made, or build
one at Modal, which lists none.

A container whose image lacks the agent is made of another one, which is built on
that image when it is first needed. 'envctl image build' does it ahead of time.`,
		Example: `  envctl image build claude
  envctl image ls
  envctl image rm --unused`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.newImageBuildCmd(), a.newImageListCmd(), a.newImageRemoveCmd())
	for _, c := range cmd.Commands() {
		c.Args = usageArgs(c.Args)
	}
	return cmd
}

// imageFlags are the flags that all image commands have.
type imageFlags struct {
	target
	asJSON bool
}

// load returns the configuration. Without --sandbox, a type that has no images, such as local,
// is replaced by Docker.
func (f *imageFlags) load(ctx context.Context) (environment.Config, error) {
	cfg, err := f.target.load(ctx)
	if err == nil && f.sandbox == "" && !cfg.Sandbox.HasImage() {
		err = cfg.Sandbox.Choose(defaultImageType)
	}
	return cfg, err
}

func (a *app) newImageBuildCmd() *cobra.Command {
	f := &imageFlags{target: target{app: a}}
	var base string
	cmd := &cobra.Command{
		Use:   "build [flags] AGENT",
		Short: "Build an image with an agent and print its name",
		Long: `Build an image with an agent, unless the engine or Modal has it already, and print its
name, for --image. What the build says goes to standard error. If the base has the agent,
or the agent needs nothing, the name is that of the base, and so is "base" with --json,
where the rest is not told.

The base must be of a Debian system and have npm. The build runs in a sandbox with the
network and the limits of the configuration. Proxies are taken from HTTP_PROXY, HTTPS_PROXY
and NO_PROXY, without passwords: programs of the base could read and keep them.`,
		Example: `  envctl image build claude
  envctl image build claude --base my-team/dev:latest
  envctl image build claude --sandbox modal`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(agentNames(), args[0]) {
				return noAgent(args[0])
			}
			cfg, err := f.load(cmd.Context())
			if err != nil {
				return err
			}
			cfg.Progress = a.newProgress()
			if cfg.Agent.Name != args[0] {
				cfg.Agent = environment.Agent{Name: args[0]}
			}
			if base != "" {
				cfg.Sandbox.Image = base
			}
			img, err := environment.BuildImage(cmd.Context(), cfg)
			if errors.Is(err, fs.ErrExist) {
				img.Ref, err = firstOf(cfg.Sandbox.Image, environment.DefaultImage), nil
				if f.asJSON {
					return printLines(a, []usedImage{{Ref: img.Ref, Agent: args[0], Base: img.Ref}})
				}
			}
			if err != nil {
				return err
			}
			if f.asJSON {
				return printLines(a, []environment.Image{img})
			}
			_, err = fmt.Fprintln(a.out, img.Ref)
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVarP(&base, "base", "b", "", "image to add the agent to (default "+environment.DefaultImage+")")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the image as one JSON object")
	cmd.ValidArgsFunction = cobra.FixedCompletions(agentNames(), cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

// usedImage is the output for an image that already has the agent.
type usedImage struct {
	Ref   string `json:"ref"`
	Agent string `json:"agent"`
	Base  string `json:"base"` // the same as Ref
}

func (a *app) newImageListCmd() *cobra.Command {
	f := &imageFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the images with agents",
		Example: "  envctl image ls --json | jq -r .ref",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := f.list(cmd.Context())
			if err != nil {
				return err
			}
			if f.asJSON {
				return printLines(a, list)
			}
			rows := [][]term.Span{term.Plains("IMAGE", "AGENT", "VERSION", "BASE", "SIZE", "CREATED", "USED")}
			for _, i := range list {
				used := "unused"
				if i.InUse {
					used = "in use"
				}
				rows = append(rows, term.Plains(i.Ref, i.Agent, i.Version, i.Base,
					units.HumanSize(float64(i.Size)), i.Created.Local().Format(time.DateTime), used))
			}
			return a.out.Table(rows...)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (f *imageFlags) list(ctx context.Context) ([]environment.Image, error) {
	cfg, err := f.load(ctx)
	if err != nil {
		return nil, err
	}
	return environment.Images(ctx, cfg.Sandbox)
}

// imageRemoveFlags are the flags of image rm.
type imageRemoveFlags struct {
	imageFlags
	all, unused bool
}

func (a *app) newImageRemoveCmd() *cobra.Command {
	f := &imageRemoveFlags{imageFlags: imageFlags{target: target{app: a}}}
	cmd := &cobra.Command{
		Use:   "rm [flags] [IMAGE...]",
		Short: "Remove images with agents",
		Long: `Remove images with agents, by name, by the beginning of a tag, or by the agent if only
one image has it. They are built again when they are needed. An image that is used by
containers stays, and is an error unless --unused is given.`,
		Example: `  envctl image rm claude
  envctl image rm agentenv-claude:d3c3
  envctl image rm --unused`,
		RunE: func(cmd *cobra.Command, names []string) error { return f.remove(cmd.Context(), names) },
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "remove all of them")
	cmd.Flags().BoolVar(&f.unused, "unused", false, "remove all that no container uses")
	cmd.ValidArgsFunction = completeImages
	return cmd
}

// completeImages completes the images with agents. The flags of the command choose the engine.
func completeImages(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var f imageFlags
	f.app = newApp(nil, io.Discard, io.Discard) // only refs are printed
	for flag, value := range map[string]*string{"sandbox": &f.sandbox, "to": &f.sandbox, "config": &f.config} {
		if given := cmd.Flags().Lookup(flag); given != nil {
			*value = given.Value.String()
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), listTimeout)
	defer cancel()
	list, _ := f.list(ctx) // without an engine there is nothing to offer
	refs := make([]cobra.Completion, 0, len(list))
	for _, i := range list {
		refs = append(refs, i.Ref)
	}
	return refs, cobra.ShellCompDirectiveNoFileComp
}

func (f *imageRemoveFlags) remove(ctx context.Context, names []string) error {
	if named := len(names) > 0; named == (f.all || f.unused) || f.all && f.unused {
		return usagef("no image is named; name those to remove, or give --unused or --all")
	}
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	list, err := environment.Images(ctx, cfg.Sandbox)
	if errors.Is(err, errors.ErrUnsupported) && len(names) > 0 {
		return f.removeUnlisted(ctx, cfg.Sandbox, names)
	}
	if err != nil {
		return err
	}
	var errs []error
	remove := func(i environment.Image) {
		err := environment.RemoveImage(ctx, cfg.Sandbox, i.Ref)
		if err == nil {
			fmt.Fprintln(f.app.out, i.Ref)
		}
		errs = append(errs, err)
	}
	for _, i := range list {
		if f.all || f.unused && !i.InUse {
			remove(i)
		}
	}
	for _, name := range names {
		i, err := findImage(list, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		remove(i)
	}
	return errors.Join(errs...)
}

// removeUnlisted removes images by their full names.
func (f *imageRemoveFlags) removeUnlisted(ctx context.Context, s environment.Sandbox, names []string) error {
	var errs []error
	for _, name := range names {
		err := environment.RemoveImage(ctx, s, name)
		if err == nil {
			fmt.Fprintln(f.app.out, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// findImage returns the image with this name, with the whole tag, a prefix of the tag or no tag,
// or with this agent.
func findImage(list []environment.Image, name string) (environment.Image, error) {
	var found []environment.Image
	for _, i := range list {
		if i.Ref == name {
			return i, nil
		}
		repository, tag, _ := strings.Cut(i.Ref, ":")
		if name != "" && (name == repository || name == i.Agent || strings.Contains(name, ":") && strings.HasPrefix(i.Ref, name) || strings.HasPrefix(tag, name)) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return environment.Image{}, fmt.Errorf("there is no image %q; 'envctl image ls' shows those there are", name)
	case 1:
		return found[0], nil
	}
	refs := make([]string, 0, len(found))
	for _, i := range found {
		refs = append(refs, i.Ref)
	}
	return environment.Image{}, fmt.Errorf("%q is the beginning of several names: %s; give more of it", name, strings.Join(refs, " and "))
}
