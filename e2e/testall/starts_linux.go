package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testagents"
)

// starts counts the starts of the pinned agents, by package and agent. The kernel reports each
// opening of their programs for execution, in containers, too, which needs root.
type starts struct {
	err   error // why nothing is counted
	queue *os.File
	wait  sync.WaitGroup
	count map[string]map[string]int
}

// The "packages" of starts in containers, and of processes that have ended or lost their parent.
const inContainers, unknown = "containers", "unknown"

func countStarts() *starts {
	s := &starts{count: map[string]map[string]int{}}
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		s.err = fmt.Errorf("fanotify: %w", err)
		return s
	}
	for name, find := range map[string]func() (string, error){
		"claude": testagents.FindClaude, "codex": testagents.FindCodex, "gemini": testagents.FindGemini, "opencode": testagents.FindOpenCode,
	} {
		exe, err := find()
		if err == nil {
			err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC, unix.AT_FDCWD, exe)
		}
		if err != nil {
			s.err = errors.Join(s.err, fmt.Errorf("%s: %w", name, err))
		}
	}
	s.queue = os.NewFile(uintptr(fd), "fanotify")
	s.wait.Go(s.read)
	return s
}

// read reads events until the queue is closed.
func (s *starts) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.queue.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= int(unsafe.Sizeof(unix.FanotifyEventMetadata{})); {
			ev := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&b[0]))
			s.add(int(ev.Fd), int(ev.Pid))
			b = b[ev.Event_len:]
		}
	}
}

// add counts the start of the program that is open as fd by a process.
func (s *starts) add(fd, pid int) {
	if fd < 0 {
		return
	}
	exe, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	_ = unix.Close(fd)
	if err != nil {
		return
	}
	agent := strings.TrimSuffix(filepath.Base(exe), ".js")
	at := startedBy(pid)
	if s.count[at] == nil {
		s.count[at] = map[string]int{}
	}
	s.count[at][agent]++
}

// startedBy returns the package whose test program is an ancestor of a process.
func startedBy(pid int) string {
	own, _ := os.Readlink("/proc/self/ns/pid")
	if space, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid"); err == nil && space != own {
		return inContainers
	}
	for pid > 1 {
		dir := "/proc/" + strconv.Itoa(pid)
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			break
		}
		if args := bytes.Split(line, []byte{0}); len(args) > 3 && string(args[1]) == wrapVerb {
			cwd, err := os.Readlink(dir + "/cwd")
			if err != nil {
				break
			}
			rel, err := filepath.Rel(string(args[2]), cwd)
			if err != nil {
				break
			}
			return filepath.ToSlash(rel)
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			break
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		pid, err = strconv.Atoi(string(fields[1]))
		if err != nil {
			break
		}
	}
	return unknown
}

// stop ends the counting.
func (s *starts) stop() {
	if s.queue != nil {
		_ = s.queue.Close()
	}
	s.wait.Wait()
}

// of returns the number of starts of each agent by a package, for people.
func (s *starts) of(path string) string {
	if s.err != nil {
		return "?"
	}
	var parts []string
	for _, agent := range []string{"claude", "codex", "gemini", "opencode"} {
		if n := s.count[path][agent]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", agent, n))
		}
	}
	return strings.Join(parts, ", ")
}
