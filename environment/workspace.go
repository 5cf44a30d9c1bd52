package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// watchDebounce is how long a file must be unchanged before its change is reported.
const watchDebounce = 50 * time.Millisecond

// maxListedContent limits the contents that WorkspaceFiles returns, in bytes.
const maxListedContent = 256 << 20

// DefaultIgnore returns what WorkspaceFiles and WatchWorkspace leave out by default: files that
// tools write and users do not edit.
func DefaultIgnore() []string { return []string{".git", "node_modules"} }

// FilesOptions says which files of the workspace to return. The zero value
// returns all but the ignored ones, without content.
type FilesOptions struct {
	// Ignore replaces [DefaultIgnore]; an empty slice that is not nil ignores
	// nothing. The syntax is that of primitives.WatchOptions.Ignore.
	Ignore []string
	// MaxContent adds the content of files up to this size in bytes. Zero adds none.
	MaxContent int64
}

func (o FilesOptions) ignore() ([]string, error) {
	if o.Ignore == nil {
		return DefaultIgnore(), nil
	}
	return o.Ignore, workspace.CheckPatterns(o.Ignore)
}

// WorkspaceFile is a file of the workspace.
type WorkspaceFile struct {
	primitives.FileInfo
	// Content is the file's content if it was requested. It is nil otherwise; the content of an
	// empty file is not nil.
	Content []byte `json:"content,omitzero"`
	// Omitted is why a requested content is missing.
	Omitted primitives.ContentOmitted `json:"omitted,omitempty"`
}

// WorkspaceFiles returns the files and links of the workspace, sorted by path, relative to it.
// The error is primitives.ErrLimit for more files than fit into primitives.MaxListing, including
// ignored files, and for contents of more than 256 MiB.
func (e *Environment) WorkspaceFiles(ctx context.Context, opts FilesOptions) ([]WorkspaceFile, error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	ignore, err := opts.ignore()
	if err != nil {
		return nil, err
	}
	infos, err := e.prim.List(ctx, ".", primitives.ListOptions{Depth: -1})
	if err != nil {
		return nil, fmt.Errorf("workspace files: %w", err)
	}
	var files []WorkspaceFile
	var total int64
	for _, info := range infos {
		if info.IsDir() || workspace.Ignored(ignore, info.Path) {
			continue
		}
		file := WorkspaceFile{FileInfo: info}
		if opts.MaxContent > 0 && info.Mode.IsRegular() {
			err := e.readContent(ctx, &file, opts.MaxContent)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was removed in the meantime
			}
			if err != nil {
				return nil, fmt.Errorf("workspace files: %w", err)
			}
		}
		if total += int64(cap(file.Content)); total > e.most {
			return nil, fmt.Errorf("workspace files: %w: their contents are larger than %d MiB; lower MaxContent or ignore more",
				primitives.ErrLimit, e.most>>20)
		}
		files = append(files, file)
	}
	return files, nil
}

func (e *Environment) readContent(ctx context.Context, f *WorkspaceFile, most int64) error {
	if f.Size > most {
		f.Omitted = primitives.OmittedTooLarge
		return nil
	}
	content, err := primitives.ReadFile(ctx, e.prim, f.Path, most)
	switch {
	case errors.Is(err, primitives.ErrLimit): // it has grown
		f.Omitted = primitives.OmittedTooLarge
	case errors.Is(err, fs.ErrPermission):
		f.Omitted = primitives.OmittedUnreadable
	case err != nil:
		return err
	default:
		f.Content = content
	}
	return nil
}

// WatchWorkspace returns file_created, file_modified, file_deleted and file_renamed events until
// ctx is done, the loop ends early or the environment is closed. It reports folders only when
// they are deleted or renamed, together with all files in them. The watch is live when
// WatchWorkspace returns. Its sequence can be used once, and must be used or ctx cancelled to
// end the watch.
func (e *Environment) WatchWorkspace(ctx context.Context, opts FilesOptions) (iter.Seq2[runnerscripts.Event, error], error) {
	ignore, err := opts.ignore()
	if err != nil {
		return nil, err
	}
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := e.prim.Watch(ctx, ".", primitives.WatchOptions{
		Ignore: ignore, MaxContent: opts.MaxContent, Debounce: watchDebounce,
	})
	if err != nil {
		leave()
		return nil, fmt.Errorf("watch the workspace: %w", err)
	}
	return func(yield func(runnerscripts.Event, error) bool) {
		defer leave()
		for change, err := range changes {
			if err != nil {
				yield(runnerscripts.Event{}, fmt.Errorf("watch the workspace: %w", err))
				return
			}
			ev, ok := e.fileEvent(change)
			if ok && !yield(ev, nil) {
				return
			}
		}
	}, nil
}

// fileEvent converts a change to an event; ok is false for changes that are not reported.
func (e *Environment) fileEvent(w primitives.WatchEvent) (runnerscripts.Event, bool) {
	payload := runnerscripts.FileChange{
		Path: w.Path, From: w.From, PathBytes: workspace.NotUTF8(w.Path), FromBytes: workspace.NotUTF8(w.From), Size: w.Size, Omitted: string(w.Omitted),
	}
	if w.Content != nil {
		payload.Content, payload.Omitted = textContent(w.Content)
	}
	var typ runnerscripts.EventType
	switch w.Op {
	case primitives.OpCreate:
		typ = runnerscripts.TypeFileCreated
	case primitives.OpModify:
		typ = runnerscripts.TypeFileModified
	case primitives.OpRemove:
		typ = runnerscripts.TypeFileDeleted
	case primitives.OpRename:
		typ = runnerscripts.TypeFileRenamed
	default:
		return e.scripts.Events.New(runnerscripts.TypeLog, "", runnerscripts.Log{
			Level: "warn", Message: "files changed faster than they were watched; what was missed follows",
		}), w.Op == primitives.OpOverflow
	}
	if w.Dir && (w.Op == primitives.OpCreate || w.Op == primitives.OpModify) {
		return runnerscripts.Event{}, false
	}
	ev := e.scripts.Events.New(typ, "", payload)
	if !w.Time.IsZero() {
		ev.Time = w.Time.UTC()
	}
	return ev, true
}

func textContent(b []byte) (content *string, omitted string) {
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return nil, "binary"
	}
	s := string(b)
	return &s, ""
}
