package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// describeMachine returns what can explain why the same tests take longer here or now: a slow or
// stolen processor, other work, and the leftovers of earlier work.
func describeMachine(ctx context.Context) string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	for _, p := range probes {
		wall, cpu, err := probe(p.run)
		row(p.name, "%.2f s, %.2f s of processor for %s", wall.Seconds(), cpu.Seconds(), p.work)
		if err != nil {
			row(p.name, "%v", err)
		}
	}
	row("load", "%s", firstLine("/proc/loadavg"))
	row("up", "%s", firstLine("/proc/uptime"))
	row("cpu", "%s (user nice system idle iowait irq softirq steal, in hundredths of a second)", strings.TrimSpace(strings.TrimPrefix(firstLine("/proc/stat"), "cpu ")))
	for _, kind := range []string{"cpu", "memory", "io"} {
		row("pressure", "%s: %s", kind, firstLine("/proc/pressure/"+kind))
	}
	row("memory", "%s", memory("MemAvailable", "Slab"))
	var disk syscall.Statfs_t
	if err := syscall.Statfs(os.TempDir(), &disk); err == nil {
		row("disk", "%d MiB free below %s, which has %d entries", disk.Bavail*uint64(disk.Bsize)>>20, os.TempDir(), entries(os.TempDir()))
	}
	processes, zombies, watches := processes()
	row("processes", "%d, %d zombies, %d inotify instances, %d mounts", processes, zombies, watches, lines("/proc/self/mountinfo"))
	row("cgroups", "%s", cgroups())
	row("engine", "%s; %s volumes, %s networks", docker(ctx, "info", "--format", "{{.Containers}} containers, {{.Images}} images"),
		count(docker(ctx, "volume", "ls", "-q")), count(docker(ctx, "network", "ls", "-q")))
	return b.String()
}

// probes are fixed pieces of work. What takes longer than in another run tells where the machine is
// slower: its processor, its memory, its file system, or its starts of processes.
var probes = []struct {
	name, work string
	run        func() error
}{
	{"processor", "500 million steps", func() error {
		x := uint64(1)
		for range 500_000_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		if x == 0 { // never; but the compiler must not leave the loop out
			return errors.New("xorshift gave zero")
		}
		return nil
	}},
	{"memory", "512 MiB touched for the first time", func() error {
		fresh, err := syscall.Mmap(-1, 0, 512<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return err
		}
		for i := 0; i < len(fresh); i += 4096 {
			fresh[i] = 1
		}
		return syscall.Munmap(fresh)
	}},
	{"files", "5,000 made and removed", func() error {
		dir, err := os.MkdirTemp("", "agentenv-testall-")
		if err != nil {
			return err
		}
		for i := range 5000 {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
				return errors.Join(err, os.RemoveAll(dir))
			}
		}
		return os.RemoveAll(dir)
	}},
	{"starts", "200 of true", func() error {
		for range 200 {
			if err := exec.Command("true").Run(); err != nil {
				return err
			}
		}
		return nil
	}},
}

// probe returns what a piece of work took.
func probe(work func() error) (wall, cpu time.Duration, err error) {
	before, began := processorTime(), time.Now()
	err = work()
	return time.Since(began), processorTime() - before, err
}

// processorTime returns the time of this process and of the children that it has waited for.
func processorTime() (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		_ = syscall.Getrusage(who, &used) // cannot fail
		sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return sum
}

func firstLine(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

func lines(name string) int {
	data, _ := os.ReadFile(name)
	return strings.Count(string(data), "\n")
}

func entries(dir string) int {
	list, _ := os.ReadDir(dir)
	return len(list)
}

// memory returns lines of /proc/meminfo.
func memory(keys ...string) string {
	data, _ := os.ReadFile("/proc/meminfo")
	var found []string
	for line := range strings.Lines(string(data)) {
		for _, key := range keys {
			if strings.HasPrefix(line, key+":") {
				found = append(found, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return strings.Join(found, ", ")
}

func processes() (all, zombies, watches int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has ended
		}
		all++
		if strings.Contains(string(stat), ") Z ") {
			zombies++
		}
		fds, _ := os.ReadDir(dir + "/fd")
		for _, fd := range fds {
			if target, _ := os.Readlink(dir + "/fd/" + fd.Name()); target == "anon_inode:inotify" {
				watches++
			}
		}
	}
	return all, zombies, watches
}

// cgroups returns the number of control groups by controller, including removed ones that still
// hold memory.
func cgroups() string {
	data, _ := os.ReadFile("/proc/cgroups")
	var found []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 4 && !strings.HasPrefix(line, "#") && f[2] != "0" {
			found = append(found, f[0]+" "+f[2])
		}
	}
	return strings.Join(found, ", ")
}

// docker returns what the docker command prints.
func docker(ctx context.Context, args ...string) string {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func count(list string) string {
	if list == "unknown" {
		return list
	}
	return fmt.Sprint(len(strings.Fields(list)))
}
