package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mostDiffed is the size up to which a file's old text is part of the diff.
const mostDiffed = 1 << 20

// write is the tool that writes a file in the workspace.
type write struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func (write) name() string { return toolWrite }

func (t write) call(id string) runnerscripts.ToolCall {
	return runnerscripts.ToolCall{
		ToolCallID: id, Title: "Write " + t.Path, Name: toolWrite,
		Kind: runnerscripts.ToolEdit, RawInput: mustMarshal(t),
	}
}

func (write) withInput(raw json.RawMessage) (tool, error) {
	var t write
	if err := strictInput(raw, &t); err != nil {
		return nil, err
	}
	if t.Path == "" {
		return nil, errors.New(`"path" is empty`)
	}
	return t, nil
}

// use writes the file, never outside the workspace.
func (t write) use(_ context.Context, c *conversation) runnerscripts.ToolCall {
	old, err := t.replace(c.paths.Workspace)
	if err != nil {
		return failed(fmt.Sprintf("%s was not written: %v", t.Path, err))
	}
	name := filepath.Join(c.paths.Workspace, t.Path)
	return runnerscripts.ToolCall{
		Status:    runnerscripts.ToolCompleted,
		Content:   []runnerscripts.ToolCallContent{{Type: "diff", Path: name, OldText: old, NewText: t.Content}},
		Locations: []runnerscripts.Location{{Path: name}},
		RawOutput: mustMarshal(map[string]int{"bytes": len(t.Content)}),
	}
}

// replace writes the file and returns its old content, if that is text.
func (t write) replace(workspace string) (old *string, err error) {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !filepath.IsLocal(t.Path) {
		return nil, errors.New("the path leads out of the workspace")
	}
	if old, err = readText(root, t.Path); err != nil {
		return nil, err
	}
	if err := root.MkdirAll(filepath.Dir(t.Path), 0o755); err != nil {
		return nil, err
	}
	return old, root.WriteFile(t.Path, []byte(t.Content), 0o644)
}

func readText(root *os.Root, name string) (*string, error) {
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > mostDiffed:
		return nil, nil
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, mostDiffed))
	if err != nil || !utf8.Valid(raw) {
		return nil, err
	}
	text := string(raw)
	return &text, nil
}
