package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	xterm "golang.org/x/term"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/gateway/credentials"
)

// maxSecretInput is how many bytes of standard input are read for a secret. The limit of the
// store is lower.
const maxSecretInput = 1 << 20

func (a *app) newCredentialsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "credentials",
		Short: "Store, list and remove secrets of this machine",
		Long: `Store, list and remove secrets of this machine's user, in one file that is encrypted with
age. The key of the file is an age identity (AGE-SECRET-KEY-1...), as age-keygen makes it:
the value of AGENTENV_CREDENTIALS_KEY, else in the file that AGENTENV_CREDENTIALS_KEY_FILE
names, else in agentenv/credentials.key of the configuration folder (~/.config), which
'envctl credentials set --init' makes. Without a key nothing is stored.`,
		Example: `  envctl credentials set --init anthropic
  envctl credentials ls
  envctl credentials rm anthropic`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.newCredentialsSetCmd(), a.newCredentialsListCmd(), a.newCredentialsRemoveCmd())
	return cmd
}

func (a *app) newCredentialsSetCmd() *cobra.Command {
	var makeKey bool
	cmd := &cobra.Command{
		Use:   "set [flags] NAME",
		Short: "Store a secret that is read from standard input",
		Long: `Store a secret and replace the one of the same name. It is read from standard input, on a
terminal without an echo, and never from arguments, which other programs can see. A line
break at its end is left out.`,
		Example: `  envctl credentials set anthropic
  pass show openai | envctl credentials set openai
  envctl credentials set --init gemini < gemini.key`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCredentials(func(s *credentials.Store) error { return a.setCredential(cmd.Context(), s, args[0], makeKey) })
		},
	}
	cmd.Flags().BoolVar(&makeKey, "init", false, "make the key of the store first, if this machine has none")
	cmd.ValidArgsFunction = a.completeCredentials(1)
	return cmd
}

func (a *app) newCredentialsListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the names of the stored secrets",
		Example: "  envctl credentials ls --json | jq -r .name",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.withCredentials(func(s *credentials.Store) error {
				list, err := s.List()
				if err != nil {
					return err
				}
				if asJSON {
					return printLines(a, list)
				}
				rows := [][]term.Span{term.Plains("NAME", "CHANGED")}
				for _, e := range list {
					rows = append(rows, term.Plains(e.Name, e.Changed.Local().Format(time.DateTime)))
				}
				return a.out.Table(rows...)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (a *app) newCredentialsRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove stored secrets",
		Example: "  envctl credentials rm anthropic openai",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.withCredentials(func(s *credentials.Store) error {
				var errs []error
				for _, name := range names {
					errs = append(errs, s.Remove(cmd.Context(), name))
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.ValidArgsFunction = a.completeCredentials(-1)
	return cmd
}

// withCredentials opens the store. A name or a secret that it refuses is a usage error.
func (a *app) withCredentials(use func(*credentials.Store) error) error {
	s, err := credentials.Open()
	if err != nil {
		return err
	}
	err = errors.Join(use(s), s.Close())
	if errors.Is(err, fs.ErrInvalid) {
		return usagef("%w", err)
	}
	return err
}

func (a *app) setCredential(ctx context.Context, s *credentials.Store, name string, makeKey bool) error {
	if makeKey {
		path, err := s.Init(ctx)
		if err != nil {
			return err
		}
		if path != "" {
			fmt.Fprintf(a.err, "made the key %s; keep a copy of it, without it the store cannot be read\n", path)
		}
	}
	secret, err := a.readSecret(ctx, name)
	if err != nil {
		return err
	}
	return s.Set(ctx, name, secret)
}

// readSecret reads a secret from standard input. When ctx is done it returns, and leaves the
// read pending.
func (a *app) readSecret(ctx context.Context, name string) (string, error) {
	read := func() (string, error) {
		text, err := io.ReadAll(io.LimitReader(a.in, maxSecretInput))
		return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), err
	}
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(f) {
		before, err := xterm.MakeRaw(int(f.Fd())) // before the prompt: nothing is echoed after it
		if err != nil {
			return "", err
		}
		defer func() {
			_ = xterm.Restore(int(f.Fd()), before)
			fmt.Fprintln(a.err)
		}()
		_ = a.err.Print(term.Plain("Secret of " + name + ": "))
		read = func() (string, error) {
			return xterm.NewTerminal(struct {
				io.Reader
				io.Writer
			}{f, io.Discard}, "").ReadPassword("")
		}
	}
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case r := <-done:
		switch {
		case errors.Is(r.err, io.EOF): // Ctrl-C or Ctrl-D of a terminal
			return "", &exitError{code: exitInterrupted, err: interrupted{os.Interrupt}}
		case r.err != nil:
			return "", fmt.Errorf("read the secret from standard input: %w", r.err)
		}
		return r.text, nil
	}
}

// completeCredentials completes the names in the store, for the first most arguments. A negative
// most means no limit.
func (a *app) completeCredentials(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = a.withCredentials(func(s *credentials.Store) error { // a store that cannot be read offers nothing
			list, err := s.List()
			for _, e := range list {
				if !slices.Contains(args, e.Name) {
					names = append(names, e.Name)
				}
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
