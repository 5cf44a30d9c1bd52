package testmodal

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolated reports whether spaces have their own namespaces and root file system. That requires
// root with all capabilities, and a file system that supports overlays.
var isolated = sync.OnceValue(func() bool {
	if os.Geteuid() != 0 {
		return false
	}
	dir, err := newDir(os.TempDir())
	if err != nil {
		return false
	}
	defer func() { _ = os.RemoveAll(dir) }()
	opts := spaceOptions{dir: dir, base: "/etc"}
	if err := opts.makeDirs(); err != nil {
		return false
	}
	return onThread(func() error {
		if err := privateMounts(); err != nil {
			return err
		}
		return opts.mountLayers(filepath.Join(dir, "merged"), parts[0], opts.base)
	}) == nil
})

// space contains a sandbox's processes: mount and PID namespaces, held by a first process. When
// that process ends, the kernel kills all others. It ends when this program does, even if this
// program is killed, because it reads from a pipe until EOF.
type space struct {
	init   *exec.Cmd
	pidfd  int
	alive  *os.File // the pipe of the first process
	flags  int      // namespaces
	opened spaceOptions
}

// initScript runs as the first process of a space. It mounts what only a process of the space
// can mount, and then waits for EOF on its standard input. It ignores SIGCHLD, so that the
// kernel reaps orphans.
const initScript = `mount -t proc proc /proc && trap "" CHLD && echo ready && exec cat >/dev/null`

// newSpace creates a space.
func newSpace(opts spaceOptions) (*space, error) {
	if err := opts.makeDirs(); err != nil {
		return nil, err
	}
	if !isolated() {
		return &space{opened: opts}, nil
	}
	s := &space{opened: opts, flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if opts.noNetwork {
		s.flags |= unix.CLONE_NEWNET
	}
	err := onThread(func() error {
		if err := opts.enterRoot(); err != nil {
			return fmt.Errorf("make the root of a sandbox: %w", err)
		}
		return s.startInit()
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// makeDirs creates the directories that the mounts need.
func (o spaceOptions) makeDirs() error {
	dirs := []string{filepath.Join(o.dir, "merged")}
	for _, part := range parts {
		dirs = append(dirs, upper(o.dir, part), filepath.Join(o.dir, "work-"+part))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// privateMounts gives the thread its own mount namespace.
func privateMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// enterRoot gives the thread its own mount namespace with a root file system assembled from
// layers, and makes that the thread's root.
func (o spaceOptions) enterRoot() error {
	if err := privateMounts(); err != nil {
		return err
	}
	root := filepath.Join(o.dir, "merged")
	if err := o.mountLayers(root, "root", o.base); err != nil {
		return err
	}
	if err := o.mountLayers(filepath.Join(root, "usr"), "usr", "/usr"); err != nil {
		return err
	}
	if err := mountDevices(filepath.Join(root, "dev")); err != nil {
		return err
	}
	trees := make([]int, len(o.mounts))
	for i, m := range o.mounts {
		var err error
		if trees[i], err = unix.OpenTree(unix.AT_FDCWD, m.source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return err
		}
		defer func() { _ = unix.Close(trees[i]) }()
	}
	if err := os.Chdir(root); err != nil { // changes only this thread
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	for i, m := range o.mounts { // only now, so that links resolve inside the root
		if err := m.attach(trees[i]); err != nil {
			return err
		}
	}
	return nil
}

// mountLayers mounts the overlay of one part.
func (o spaceOptions) mountLayers(target, part, base string) error {
	err := unix.Mount("overlay", target, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,metacopy=off",
		strings.Join(lowers(o.layers, part, base), ":"), upper(o.dir, part), filepath.Join(o.dir, "work-"+part)))
	if err != nil {
		return fmt.Errorf("mount an overlay of %s: %w", o.dir, err)
	}
	return nil
}

// lowers returns the lower directories of a part's overlay, uppermost first.
func lowers(layers []string, part, base string) []string {
	var all []string
	for _, layer := range layers {
		all = append(all, upper(layer, part))
	}
	return append(all, base)
}

// attach mounts the tree of a directory at its path in the thread's root.
func (m mount) attach(tree int) error {
	if err := attach(tree, m.target); err != nil || !m.readOnly {
		return err
	}
	return unix.Mount("", m.target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// mountDevices mounts a /dev with the devices that programs expect.
func mountDevices(dev string) error {
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755,size=64k"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, filepath.Join(dev, name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, fs := range []struct{ name, kind, data string }{
		{"pts", "devpts", "newinstance,ptmxmode=0666,mode=620"}, {"shm", "tmpfs", "mode=1777,size=64m"},
	} {
		if err := os.Mkdir(filepath.Join(dev, fs.name), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fs.kind, filepath.Join(dev, fs.name), fs.kind, unix.MS_NOSUID|unix.MS_NOEXEC, fs.data); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

// startInit starts the first process, on a thread that is in the root, and waits until it is
// ready.
func (s *space) startInit() error {
	stdin, alive, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = stdin.Close() }()
	ready, stdout, err := os.Pipe()
	if err != nil {
		_ = alive.Close()
		return err
	}
	defer func() { _ = ready.Close() }()
	s.alive, s.pidfd = alive, -1
	s.init = &exec.Cmd{
		Path: "/bin/sh", Args: []string{"sh", "-c", initScript}, Env: []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}, Dir: "/",
		Stdin: stdin, Stdout: stdout, Stderr: stdout,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | uintptr(s.flags&unix.CLONE_NEWNET), Setsid: true, PidFD: &s.pidfd,
		},
	}
	err = s.init.Start()
	_ = stdout.Close()
	if err != nil {
		_ = alive.Close()
		return err
	}
	if line, err := bufio.NewReader(ready).ReadString('\n'); line != "ready\n" {
		return errors.Join(fmt.Errorf("the first process of a sandbox: %q, %w", line, err), s.close())
	}
	return nil
}

// inside runs f on a thread that has entered the space: it sees the space's root, and its
// children are processes of the space.
func (s *space) inside(f func() error) error {
	if s.init == nil {
		return f()
	}
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(s.pidfd, s.flags); err != nil {
			return fmt.Errorf("enter the sandbox: %w", err)
		}
		return f()
	})
}

// close kills all processes of the space. It waits for the first process, which ends last. No
// other process may be inside.
func (s *space) close() error {
	if s.init == nil {
		return nil
	}
	_ = s.alive.Close()
	err := s.init.Process.Kill()
	_ = s.init.Wait() // it was killed
	return errors.Join(err, unix.Close(s.pidfd))
}

// onThread runs f on a thread that then ends, so f may change the thread's own state.
func onThread(f func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		if unix.Gettid() == os.Getpid() {
			// /proc shows the first thread as the process, so do not change it.
			ended <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		ended <- f()
	}()
	return <-ended
}
