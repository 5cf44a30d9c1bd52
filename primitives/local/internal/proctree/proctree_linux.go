package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat returns the state of one process; the error is fs.ErrNotExist if there is none.
func Stat(pid int) (Proc, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return Proc{}, err
	}
	return parseStat(b)
}

// parseStat parses /proc/<pid>/stat. The name is in parentheses and may contain any character, so
// it ends at the last closing parenthesis.
func parseStat(b []byte) (Proc, error) {
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 1 || to < from {
		return Proc{}, fmt.Errorf("unexpected process status %q", b)
	}
	fields := strings.Fields(string(b[to+1:]))
	if len(fields) < 20 {
		return Proc{}, fmt.Errorf("process status has %d fields", len(fields))
	}
	p := Proc{
		hasMemory: len(fields) > 20 && fields[20] != "0",
		Name:      string(b[from+1 : to]),
		Zombie:    fields[0] == "Z" || fields[0] == "X",
		Stopped:   fields[0] == "T" || fields[0] == "t",
	}
	var errs [5]error
	p.PID, errs[0] = strconv.Atoi(string(bytes.TrimSpace(b[:from])))
	p.PPID, errs[1] = strconv.Atoi(fields[1])
	p.PGID, errs[2] = strconv.Atoi(fields[2])
	p.SID, errs[3] = strconv.Atoi(fields[3])
	p.Start, errs[4] = strconv.ParseUint(fields[19], 10, 64)
	return p, errors.Join(errs[:]...)
}

// Snapshot returns every process. A process that ends meanwhile may be missing.
func Snapshot() ([]Proc, error) {
	pids, err := pidsOf("/proc")
	if err != nil {
		return nil, err
	}
	return Describe(pids), nil
}

// Describe returns those of the processes that still exist.
func Describe(pids []int) []Proc {
	procs := make([]Proc, 0, len(pids))
	for _, pid := range pids {
		if p, err := Stat(pid); err == nil {
			procs = append(procs, p)
		}
	}
	return procs
}

func pidsOf(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Mark returns the values of variables in the environment that the process was started with. It
// returns false if the first variable is missing or the environment cannot be read.
func Mark(p Proc, keys ...string) ([]string, bool) {
	if !p.hasMemory {
		return nil, false
	}
	name := "/proc/" + strconv.Itoa(p.PID) + "/environ"
	env, err := os.ReadFile(name)
	for began := time.Now(); err == nil && len(env) == 0 && time.Since(began) < execTime; {
		between := betweenPrograms(p)
		env, err = os.ReadFile(name) // read again: the next program may just have started
		if !between {
			break
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // nothing tells when a program begins
	}
	if err != nil {
		return nil, false
	}
	return findMark(env, keys)
}

// execTime is the longest time that a process may take for execve.
const execTime = 200 * time.Millisecond

// betweenPrograms reports whether a process without an environment is in execve: it has given up
// its program and not started the next one yet. Then it has no arguments either; since Linux 5.18
// every program has at least one.
func betweenPrograms(p Proc) bool {
	now, err := Stat(p.PID)
	if err != nil || now.Start != p.Start || !now.hasMemory {
		return false
	}
	args, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
	return err == nil && len(args) == 0
}

// findMark returns the values of keys in an environment. It never finds an empty key, which the end
// of an environment would match.
func findMark(env []byte, keys []string) ([]string, bool) {
	values := make([]string, len(keys))
	found := false
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		key, value, ok := bytes.Cut(entry, []byte{'='})
		for i, k := range keys {
			if ok && k != "" && string(key) == k {
				values[i] = string(value)
				found = found || i == 0
			}
		}
	}
	return values, found
}

// Self returns the identity of the calling process.
func Self() Identity {
	if p, err := Stat(os.Getpid()); err == nil {
		return p.Identity
	}
	return Identity{PID: os.Getpid()}
}

// Alive reports whether exactly this process still runs. A zombie does not run.
func Alive(id Identity) bool {
	if id.PID <= 0 {
		return false
	}
	p, err := Stat(id.PID)
	return err == nil && p.Start == id.Start && !p.Zombie
}

// Signal sends a signal to exactly this process. The error is os.ErrProcessDone if the process has
// ended, even if another process has its PID now.
func Signal(id Identity, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ENOSYS) {
		if !Alive(id) {
			return os.ErrProcessDone
		}
		return done(unix.Kill(id.PID, sig))
	}
	if err != nil {
		return done(err)
	}
	defer unix.Close(fd)
	// The descriptor pins one process. Check only now that it is the right one.
	if p, err := Stat(id.PID); err != nil || p.Start != id.Start {
		return os.ErrProcessDone
	}
	return done(unix.PidfdSendSignal(fd, sig, nil, 0))
}

func done(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// BootID identifies the current boot of this machine.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Memory returns the bytes that the processes hold in memory and that the kernel cannot simply
// drop: it does not count mapped files. Shared memory counts for each process. The second result is
// false if the system does not report memory.
func Memory(procs []Proc) (int64, bool) {
	var total int64
	for _, p := range procs {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
		if err != nil {
			continue // it has ended
		}
		total += heldMemory(string(b))
	}
	return total, true
}

// heldMemory returns the memory of one process according to its /proc status.
func heldMemory(status string) int64 {
	var total int64
	for line := range strings.Lines(status) {
		for _, key := range []string{"RssAnon:", "RssShmem:"} {
			if value, ok := strings.CutPrefix(line, key); ok {
				kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // always a number
				total += kib << 10
			}
		}
	}
	return total
}
