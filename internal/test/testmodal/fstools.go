package testmodal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// fsToolsPath is the program that the SDK runs for each file system call. It does not exist in
// the sandboxes: the server handles its requests itself, on a thread that has entered the
// sandbox.
const fsToolsPath = "/__modal/.bin/modal-sandbox-fs-tools"

// maxRead is the size of the largest file that can be read, in bytes.
const maxRead = 5 << 30

// toolsRequest is the program's only argument. Exactly one field is set.
type toolsRequest struct {
	ReadFile, WriteFile, ListFiles, Stat *struct{ Path string }
	MakeDirectory                        *struct {
		Path    string
		Parents bool
	}
	Remove *struct {
		Path      string
		Recursive bool
	}
	Watch *watchRequest
}

// toolsError is an error in the program's format.
type toolsError struct {
	Kind    string `json:"error_kind"`
	Message string `json:"message"`
	Detail  string `json:"detail"`
}

func (e *toolsError) Error() string { return e.Kind + ": " + e.Message }

// tools is one run of the program.
type tools struct {
	stdin  *os.File
	stdout io.Writer
}

// runTools handles a file system request of the SDK as a command.
func (e *execution) runTools(sb *sandbox, c command) error {
	if len(c.args) != 2 {
		return errors.New("the file system's tools take one argument")
	}
	var req toolsRequest
	if err := json.Unmarshal([]byte(c.args[1]), &req); err != nil {
		return err
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	e.stdin, e.eof = stdin, func() { _ = stdin.Close() }
	e.kill = func() { _ = in.Close() } // every long request reads from stdin
	stdout, stderr := e.stdout, e.stderr
	if stdout == nil {
		stdout = newSpool(sb.dir)
	}
	sb.running.Go(func() {
		defer e.kill()
		t := tools{stdin: in, stdout: stdout}
		if err := sb.space.inside(func() error { return t.run(req) }); err != nil {
			e.code = 1
			if stderr != nil {
				_ = json.NewEncoder(stderr).Encode(describe(err))
			}
		}
		stdout.finish()
		if stderr != nil {
			stderr.finish()
		}
		_ = in.Close() // a pending writer must fail
		close(e.done)
		close(e.ended)
	})
	return nil
}

// run handles a request.
func (t tools) run(req toolsRequest) error {
	switch {
	case req.ReadFile != nil:
		return t.read(req.ReadFile.Path)
	case req.WriteFile != nil:
		return t.write(req.WriteFile.Path)
	case req.ListFiles != nil:
		return t.list(req.ListFiles.Path)
	case req.Stat != nil:
		info, err := describeFile(req.Stat.Path)
		if err != nil {
			return err
		}
		return json.NewEncoder(t.stdout).Encode(info)
	case req.MakeDirectory != nil:
		return makeDirectory(req.MakeDirectory.Path, req.MakeDirectory.Parents)
	case req.Remove != nil:
		return remove(req.Remove.Path, req.Remove.Recursive)
	case req.Watch != nil:
		return t.watch(*req.Watch)
	default:
		return &toolsError{Kind: "NotSupported", Message: "no such request"}
	}
}

func (t tools) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return syscall.EISDIR
	case info.Size() > maxRead:
		return &toolsError{Kind: "FileTooLarge", Message: "File is too large to read"}
	}
	_, err = io.CopyBuffer(t.stdout, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
}

func (t tools) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{t.stdin}, make([]byte, 1<<20))
	return errors.Join(err, f.Close())
}

func (t tools) list(path string) error {
	if info, err := os.Stat(path); err != nil {
		return err
	} else if !info.IsDir() {
		return &toolsError{Kind: "IsFile", Message: "Path is not a directory"}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	all := []fileInfo{}
	for _, entry := range entries {
		info, err := describeFile(filepath.Join(path, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just removed
		}
		if err != nil {
			return err
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b fileInfo) int { return cmp.Compare(a.Name, b.Name) })
	return json.NewEncoder(t.stdout).Encode(all)
}

func makeDirectory(path string, parents bool) error {
	if !parents {
		return os.Mkdir(path, 0o755)
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return fs.ErrExist
	}
	return os.MkdirAll(path, 0o755)
}

func remove(path string, recursive bool) error {
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	if recursive {
		return os.RemoveAll(path)
	}
	return os.Remove(path)
}

// describe converts an error to the program's format.
func describe(err error) *toolsError {
	if known, ok := errors.AsType[*toolsError](err); ok {
		return known
	}
	kinds := []struct {
		err           error
		kind, message string
	}{
		{syscall.ENOTDIR, "NotDirectory", "A component of the path is not a directory"},
		{syscall.EISDIR, "IsDirectory", "Path is a directory"},
		{syscall.ENOTEMPTY, "DirectoryNotEmpty", "Directory is not empty"},
		{fs.ErrExist, "PathAlreadyExists", "Path already exists"},
		{fs.ErrNotExist, "NotFound", "No such file or directory"},
		{fs.ErrPermission, "PermissionDenied", "Permission denied"},
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &toolsError{Kind: k.kind, Message: k.message, Detail: err.Error()}
		}
	}
	return &toolsError{Kind: "Other", Message: err.Error()}
}

// fileInfo describes a file in the program's format.
type fileInfo struct {
	Name        string  `json:"name"`
	Path        string  `json:"path"`
	Type        string  `json:"type"`
	Size        int64   `json:"size"`
	Mode        uint32  `json:"mode"`
	Permissions string  `json:"permissions"`
	Owner       string  `json:"owner"`
	Group       string  `json:"group"`
	Modified    float64 `json:"modified_time"`
	Target      *string `json:"symlink_target"`
}

// describeFile describes a file. It does not follow links.
func describeFile(path string) (fileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return fileInfo{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileInfo{}, errors.ErrUnsupported
	}
	f := fileInfo{
		Name: info.Name(), Path: path, Type: "file", Size: info.Size(), Mode: uint32(st.Mode), //nolint:unconvert // has 16 bits on some systems
		Permissions: fmt.Sprintf("%04o", st.Mode&0o7777), Modified: float64(info.ModTime().UnixNano()) / 1e9,
		Owner: nameOf("/etc/passwd", st.Uid), Group: nameOf("/etc/group", st.Gid),
	}
	switch {
	case info.IsDir():
		f.Type = "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return fileInfo{}, err
		}
		f.Type, f.Target = "symlink", &target
	}
	return f, nil
}

// nameOf returns the name of a user or group, from the sandbox's own file, or its number.
func nameOf(file string, id uint32) string {
	number := fmt.Sprint(id)
	data, err := os.ReadFile(file)
	if err != nil {
		return number
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[2] == number {
			return fields[0]
		}
	}
	return number
}
