package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/primitives"
)

// listFlags are the flags of ls.
type listFlags struct {
	target
	asJSON, recursive bool
	pattern           string
}

func (a *app) newListCmd() *cobra.Command {
	f := &listFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "ls [flags] [ID[:PATH]]",
		Short: "List the sandboxes, or the files of one",
		Long: `List the sandboxes, those in use by a program and those that are idle, or the files
of one.`,
		Example: `  envctl ls
  envctl ls 3f2a
  envctl ls -r --pattern '**/*.go' 3f2a:src`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return f.sandboxes(cmd.Context())
			}
			at := parsePlace(args[0])
			if at.id == "" {
				at = place{id: args[0]}
			}
			return f.files(cmd.Context(), at)
		},
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	fl.BoolVarP(&f.recursive, "recursive", "r", false, "list what is in folders, too")
	fl.StringVar(&f.pattern, "pattern", "", "list only paths that match, as in '**/*.go'")
	return cmd
}

func (f *listFlags) sandboxes(ctx context.Context) error {
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	list, failed := listAll(ctx, choices(cfg.Sandbox))
	if f.asJSON {
		return errors.Join(printLines(f.app, list), failed)
	}
	rows := [][]span{plains("ID", "TYPE", "STATUS", "CREATED", "USED", "IMAGE")}
	for _, s := range list {
		used := "idle"
		if s.InUse {
			used = "in use"
		}
		rows = append(rows, plains(
			s.ID, s.Type, string(s.Status), s.Created.Local().Format(time.DateTime), used, firstOf(shortImage(s.Image), "-")))
	}
	return errors.Join(f.app.out.table(rows...), failed)
}

// shortImage is an image for people: an ID without a name is cut as the docker command
// cuts it.
func shortImage(image string) string {
	if id, ok := strings.CutPrefix(image, "sha256:"); ok && len(id) == 64 {
		return id[:12]
	}
	return image
}

func (f *listFlags) files(ctx context.Context, at place) (err error) {
	env, err := f.attach(ctx, at.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	opts := primitives.ListOptions{Pattern: f.pattern}
	if f.recursive {
		opts.Depth = -1
	}
	list, err := env.Primitive().List(ctx, firstOf(at.path, "."), opts)
	if errors.Is(err, primitives.ErrNotDirectory) {
		list = make([]primitives.FileInfo, 1)
		list[0], err = env.Primitive().Stat(ctx, at.path)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return printLines(f.app, list)
	}
	var rows [][]span
	for _, i := range list {
		name := i.Path
		if i.Target != "" {
			name += " -> " + i.Target
		}
		rows = append(rows, plains(i.Mode.String(), strconv.FormatInt(i.Size, 10), i.ModTime.Local().Format(time.DateTime), name))
	}
	return f.app.out.table(rows...)
}

// printLines prints one JSON object a line.
func printLines[T any](a *app, list []T) error {
	enc := json.NewEncoder(a.out)
	for _, v := range list {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
