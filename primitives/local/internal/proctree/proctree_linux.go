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

// Stat describes one process; fs.ErrNotExist if there is none.
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

// parseStat reads a line of /proc/<pid>/stat. The name stands in parentheses and
// may itself contain any character, so its end is the last one.
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

// Snapshot describes every process. One that ends meanwhile may be missing.
func Snapshot() ([]Proc, error) {
	pids, err := pidsOf("/proc")
	if err != nil {
		return nil, err
	}
	return Describe(pids), nil
}

// Describe describes the processes that still exist.
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

// Mark returns the values of the variables in the environment that the process
// was started with, and false if the first of them is not there or the
// environment cannot be read.
func Mark(p Proc, keys ...string) ([]string, bool) {
	if !p.hasMemory {
		return nil, false
	}
	name := "/proc/" + strconv.Itoa(p.PID) + "/environ"
	env, err := os.ReadFile(name)
	for began := time.Now(); err == nil && len(env) == 0 && time.Since(began) < execTime; {
		between := betweenPrograms(p)
		env, err = os.ReadFile(name) // also if it has begun the next one: just now
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

// execTime is how long a process may take to begin another program, at most.
const execTime = 200 * time.Millisecond

// betweenPrograms reports whether a process that shows no environment is in execve: it has
// given up its program and not begun the next one yet. It then shows no arguments either;
// since Linux 5.18 every program has at least one.
func betweenPrograms(p Proc) bool {
	now, err := Stat(p.PID)
	if err != nil || now.Start != p.Start || !now.hasMemory {
		return false
	}
	args, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
	return err == nil && len(args) == 0
}

// findMark looks for the keys in the entries of an environment. An empty key is
// never found: the end of an environment would look like one.
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

// Self names the calling process.
func Self() Identity {
	if p, err := Stat(os.Getpid()); err == nil {
		return p.Identity
	}
	return Identity{PID: os.Getpid()}
}

// Alive reports whether exactly this process still runs; a zombie does not.
func Alive(id Identity) bool {
	if id.PID <= 0 {
		return false
	}
	p, err := Stat(id.PID)
	return err == nil && p.Start == id.Start && !p.Zombie
}

// Signal sends a signal to exactly this process; os.ErrProcessDone if it is gone,
// also when another one has its number now.
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
	// The descriptor holds on to one process; only now is it worth looking
	// whether that is the right one.
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

// BootID tells one boot of this machine from the next.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Memory returns the bytes that the processes hold in memory and that the kernel
// could not simply drop: files that are mapped are not counted. What several of
// them share is counted for each. The second result is false where the system does
// not tell.
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

// heldMemory sums what the kernel says about the memory of one process.
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
