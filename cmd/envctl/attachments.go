package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// attachmentFlags name the files that come with a prompt.
type attachmentFlags struct{ files []string }

func (f *attachmentFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.files, "attach", nil, "give the agent this image, PDF or text file with the first prompt; may be repeated")
	_ = cmd.MarkFlagFilename("attach")
}

// withPrompts is readAttachments for prompts that may be missing, and for an agent that is not known yet.
func (f *attachmentFlags) withPrompts(ctx context.Context, prompts []string) ([]runnerscripts.Attachment, error) {
	if len(f.files) > 0 && len(prompts) == 0 {
		return nil, usagef("--attach: a file comes with a prompt; give a prompt")
	}
	return f.readAttachments(ctx, environment.Config{})
}

// readAttachments reads the files, and checks that the configured agent accepts them; without an agent, that any
// agent may.
func (f *attachmentFlags) readAttachments(ctx context.Context, cfg environment.Config) ([]runnerscripts.Attachment, error) {
	var list []runnerscripts.Attachment
	left := runnerscripts.MaxAttachments
	for _, name := range f.files {
		data, err := readAttachment(name, left)
		if err != nil {
			return nil, usagef("--attach: %w", err)
		}
		left -= len(data)
		list = append(list, runnerscripts.Attachment{Name: filepath.Base(name), Data: data})
	}
	list, err := cfg.CheckAttachments(ctx, list)
	if err != nil && !errors.Is(err, environment.ErrConfig) {
		err = usagef("--attach: %w", err)
	}
	return list, err
}

// readAttachment reads a file, and at most one byte more than left.
func readAttachment(name string, left int) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, int64(left)+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
