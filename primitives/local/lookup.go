package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// specify resolves the working directory, user, environment and program of a command.
func (s *Sandbox) specify(cmd *primitives.Command) (*spawnSpec, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	dir := s.paths.Workspace
	switch {
	case cmd.Dir == "":
	case filepath.IsAbs(cmd.Dir):
		dir = cmd.Dir
	default:
		var err error
		if dir, err = s.files.Resolve(cmd.Dir); err != nil {
			return nil, workingDir(cmd.Dir, unwrapError(err))
		}
	}
	who, err := s.identify(cmd.User)
	if err != nil {
		return nil, err
	}
	spec := &spawnSpec{args: cmd.Args, dir: dir, cred: who.cred, env: s.commandEnv(cmd, who.name)}
	spec.path, err = lookup(cmd.Args[0], dir, spec.env)
	if err != nil {
		// A directory that cannot be entered is the likelier reason when the
		// program is relative to it.
		if derr := s.probeDir(spec); derr != nil {
			err = derr
		}
		return nil, err
	}
	return spec, nil
}

// lookup finds the program in the PATH of the command. It checks only for an executable file: the
// kernel decides whether this user may execute it.
func lookup(name, dir string, env []string) (string, error) {
	if strings.IndexByte(name, '/') >= 0 {
		return name, nil
	}
	path, ok := lookupVar(env, "PATH")
	if !ok {
		path = defaultPath
	}
	var forbidden string
	for elem := range strings.SplitSeq(path, ":") {
		if elem == "" {
			continue // means the current directory, which must not be searched
		}
		file := elem + "/" + name
		if elem[0] != '/' {
			file = filepath.Join(dir, file)
		}
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 {
			return file, nil
		}
		forbidden = file
	}
	if forbidden != "" {
		return "", fmt.Errorf("%s is not executable: %w", forbidden, fs.ErrPermission)
	}
	return "", fmt.Errorf("%w: no %q in the command's PATH: %w", primitives.ErrCommandNotFound, name, fs.ErrNotExist)
}

// explain turns an error of starting a process into one that says what was wrong: the directory,
// the user or the program.
func (s *Sandbox) explain(spec *spawnSpec, err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return noProcess(err)
	}
	if derr := s.probeDir(spec); derr != nil {
		return derr
	}
	program := spec.path
	if !filepath.IsAbs(program) {
		program = filepath.Join(spec.dir, program)
	}
	info, statErr := os.Stat(program)
	switch {
	case errors.Is(err, syscall.ENOENT) && statErr == nil:
		return fmt.Errorf("%w: %s exists, but its interpreter (the first line of a script, or the loader of a binary) does not: %w",
			primitives.ErrCommandNotFound, program, err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: %w", primitives.ErrCommandNotFound, err)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w: %w", primitives.ErrCommandNotFound, primitives.ErrNotDirectory, fs.ErrNotExist)
	case errors.Is(err, syscall.EACCES) && statErr == nil && info.IsDir():
		return fmt.Errorf("%w: %w", primitives.ErrIsDirectory, err)
	case errors.Is(err, syscall.EACCES) && statErr == nil && info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable; chmod +x it: %w", program, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w: %s is neither a binary of this platform nor a script with a #! line: %w", fs.ErrInvalid, program, err)
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("%w: the arguments and the environment are too large; pass data on standard input or in a file: %w",
			primitives.ErrLimit, err)
	}
	return err
}

// noProcess returns the error of a start at the limit of processes.
func noProcess(err error) error {
	return fmt.Errorf("%w: there are as many processes as the container, or the user, may have: %w; raise that limit or, if most are zombies, start the container with an init (docker run --init)",
		primitives.ErrLimit, err)
}

// probeDir returns the error of entering the working directory as the command's user, or nil. It
// lets the kernel try: starting a program whose path is too long fails with ENAMETOOLONG if, and
// only if, all earlier steps succeeded.
func (s *Sandbox) probeDir(spec *spawnSpec) error {
	if len(spec.dir) >= unix.PathMax {
		return workingDir(spec.dir, syscall.ENAMETOOLONG)
	}
	probe := &spawnSpec{
		path: strings.Repeat("/", unix.PathMax), args: []string{"probe"},
		dir: spec.dir, cred: spec.cred,
	}
	err := tryStart(probe)
	if err == nil || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil
	}
	probe.dir = ""
	uerr := tryStart(probe)
	switch {
	case errors.Is(uerr, syscall.EAGAIN):
		return noProcess(uerr)
	case uerr != nil && !errors.Is(uerr, syscall.ENAMETOOLONG):
		return fmt.Errorf("cannot become the user of the command: %w", uerr)
	}
	err = workingDir(spec.dir, err)
	if spec.cred != nil && errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w for the user %d; make the sandbox for that user, or give the command a directory that it may enter", err, spec.cred.Uid)
	}
	return err
}

// tryStart starts a program that cannot be started and returns the reason. A child that is
// killed before it reports the reason looks as if it had started, so tryStart tries three
// times; it returns nil if the reason stays unknown.
func tryStart(spec *spawnSpec) error {
	for range 3 {
		pid, pidfd, err := forkExec(spec)
		if err != nil {
			return err
		}
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
		_, _ = reap(pid)
	}
	return nil
}

// workingDir wraps the error of entering a directory.
func workingDir(dir string, err error) error {
	if errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, primitives.ErrNotDirectory) {
		err = fmt.Errorf("%w: %w", primitives.ErrNotDirectory, err)
	}
	return fmt.Errorf("%w: %s: %w", primitives.ErrWorkingDir, dir, err)
}

// unwrapError removes the operation and the target, which the caller adds again.
func unwrapError(err error) error {
	var e *primitives.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
