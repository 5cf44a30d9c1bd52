// Package cgroup keeps the processes of a sandbox in control groups (version 2), one group below
// the sandbox's for each command, so that the kernel knows them all and can kill them at once.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Group is the control group of one sandbox. It is safe for concurrent use.
type Group struct {
	path   string
	prefix string // of the leaves that this handle makes

	mu     sync.Mutex
	next   int
	idle   []*Leaf // released, perhaps with processes in them
	closed bool
}

// Leaf is the control group of one command. A later command uses it again once all its processes
// have ended, which saves making a new one.
type Leaf struct {
	path   string
	dir    *os.File
	events *os.File
	spent  atomic.Bool
}

// maxIdle bounds the descriptors that idle leaves hold.
const maxIdle = 32

// Open returns the sandbox's group at path, which it makes if it does not exist. prefix is the
// prefix of the names of the leaves that this handle makes; it must be unique among the handles of
// the sandbox.
func Open(path, prefix string) (*Group, error) {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, "cgroup.kill")); err != nil {
		_ = os.Remove(path)
		return nil, fmt.Errorf("the kernel cannot kill a control group at once (it needs Linux 5.14): %w", err)
	}
	return &Group{path: path, prefix: prefix}, nil
}

// Path returns the path of the group.
func (g *Group) Path() string { return g.path }

// Acquire returns a leaf without processes.
func (g *Group) Acquire() (*Leaf, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, l := range g.idle {
		if !l.Populated() {
			g.idle = append(g.idle[:i], g.idle[i+1:]...)
			return l, nil
		}
	}
	g.next++
	return newLeaf(filepath.Join(g.path, g.prefix+"-"+strconv.Itoa(g.next)))
}

// Make returns a new leaf with a name of its own, which is not used again.
func (g *Group) Make(name string) (*Leaf, error) {
	return newLeaf(filepath.Join(g.path, name))
}

func newLeaf(path string) (*Leaf, error) {
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	events, err := os.Open(filepath.Join(path, "cgroup.events"))
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Leaf{path: path, dir: dir, events: events}, nil
}

// Release releases a leaf for use by another command. Processes in it keep running.
func (g *Group) Release(l *Leaf) {
	if l.spent.Load() {
		l.Close()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		l.Close() // no caller gets it any more
		return
	}
	g.idle = append(g.idle, l)
	if len(g.idle) > maxIdle {
		g.idle[0].Close()
		g.idle = append(g.idle[:0], g.idle[1:]...)
	}
}

// Close closes the leaves of this handle, and those that are released later. Processes keep
// running; leaves without processes are removed.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, l := range g.idle {
		l.Close()
	}
	g.idle = nil
}

// FD returns the descriptor for starting a process in the leaf.
func (l *Leaf) FD() int { return int(l.dir.Fd()) }

// Path returns the path of the leaf.
func (l *Leaf) Path() string { return l.path }

// Kill kills every process in the leaf and below it. The leaf is not used again: Linux, at least up
// to 6.18, also kills every process that is later started in a killed group.
func (l *Leaf) Kill() error {
	l.spent.Store(true)
	return Kill(l.path)
}

// Populated reports whether there are processes in the leaf or below it.
func (l *Leaf) Populated() bool {
	var buf [128]byte
	n, _ := l.events.ReadAt(buf[:], 0)
	return !bytes.Contains(buf[:n], []byte("populated 0"))
}

// Close closes the leaf, and removes it if it has no processes: the kernel refuses otherwise.
func (l *Leaf) Close() {
	_ = l.dir.Close()
	_ = l.events.Close()
	_ = os.Remove(l.path)
}

// Populated reports whether there are processes in the group at path or below it. A missing group
// has none.
func Populated(path string) bool {
	b, err := os.ReadFile(filepath.Join(path, "cgroup.events"))
	return !errors.Is(err, fs.ErrNotExist) && !bytes.Contains(b, []byte("populated 0"))
}

// Pids lists the processes in the group at path and below it. A missing group has
// none.
func Pids(path string) ([]int, error) {
	var pids []int
	err := walk(path, func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(b)) {
			// The kernel shows processes outside this PID namespace as 0.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

// Kill kills every process in the group at path and below it.
func Kill(path string) error {
	err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove removes the group at path and those below it. All must be empty.
func Remove(path string) error {
	return walk(path, os.Remove)
}

// Leaves lists the names of the groups directly below path.
func Leaves(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// walk calls visit for path and every group below it, children first. It skips groups that vanish
// meanwhile.
func walk(path string, visit func(dir string) error) error {
	names, err := Leaves(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := walk(filepath.Join(path, name), visit); err != nil {
			return err
		}
	}
	if err := visit(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CPU returns the processor time that the processes in the group at path and below it have used,
// including ended processes.
func CPU(path string) (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join(path, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%w: the kernel does not count it", errors.ErrUnsupported)
}
