package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processWords are about processes and signals.
func processWords() map[string]step {
	return map[string]step{
		"exit": {1, func(_ *script, a []string) error {
			code, err := strconv.Atoi(a[0])
			if err != nil {
				return err
			}
			os.Exit(code) //nolint:forbidigo // what the word is for
			return nil
		}},
		// hang: wait for ever.
		"hang": {0, func(*script, []string) error { return forever(nil) }},
		// ignore SIG: ignore a signal. trap SIG: when the signal arrives, print "got SIG" and
		// exit with 0.
		"ignore": {1, func(_ *script, a []string) error { signal.Ignore(number(a[0])); return nil }},
		"trap":   {1, func(_ *script, a []string) error { trap(a[0]); return nil }},
		// die SIG: kill this process with that signal.
		"die": {1, func(_ *script, a []string) error {
			defaultSignal(number(a[0]))
			if err := syscall.Kill(os.Getpid(), number(a[0])); err != nil {
				return err
			}
			return forever(nil)
		}},
		// mark TOKEN: do nothing; the token appears in the process list.
		"mark": {1, func(*script, []string) error { return nil }},
		// ps TOKEN: print the process IDs of all other processes with the token in their
		// arguments, as JSON.
		"ps": {1, func(_ *script, a []string) error {
			pids, err := find(a[0])
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(pids)
		}},
		"pid": {0, func(*script, []string) error { fmt.Fprintln(os.Stdout, os.Getpid()); return nil }},
		"ids": {0, func(*script, []string) error {
			fmt.Fprintf(os.Stdout, "%d:%d", os.Getuid(), os.Getgid())
			return nil
		}},
		// descriptors: print the numbers of the inherited descriptors that a child would
		// inherit, too.
		"descriptors": {0, func(*script, []string) error {
			entries, err := os.ReadDir("/dev/fd")
			if err != nil {
				return err
			}
			var inherited []string
			for _, e := range entries {
				fd, err := strconv.Atoi(e.Name())
				if err != nil {
					return err
				}
				if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
					inherited = append(inherited, e.Name())
				}
			}
			_, err = fmt.Fprintln(os.Stdout, strings.Join(inherited, " "))
			return err
		}},
		// spawn MODES ... end: start a child that executes the words in between. Modes,
		// separated by commas: plain, setsid (leaves the session), group (leaves the process
		// group), double (is orphaned), quiet (holds none of the streams), bare (with an empty
		// environment), wait (spawn waits for the child).
		"spawn": {1, spawn},
		// kill SIG TOKEN: signal all processes with the token.
		"kill": {2, func(_ *script, a []string) error {
			pids, err := find(a[1])
			for _, pid := range pids {
				err = errors.Join(err, syscall.Kill(pid, number(a[0])))
			}
			return err
		}},
		// burn MS: use this much processor time, in milliseconds. hold N: hold N bytes of
		// memory until the end.
		"burn": {1, func(_ *script, a []string) error { return burn(a[0]) }},
		"hold": {1, hold},
		// crowd N: start N children that exit at once, and reap them.
		"crowd": {1, func(_ *script, a []string) error { return crowd(a[0]) }},
	}
}

func forever(until <-chan os.Signal) error {
	for {
		select {
		case <-until:
			return nil
		case <-time.After(time.Hour):
		}
	}
}

func number(name string) syscall.Signal {
	n, ok := map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL,
		"TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "SEGV": syscall.SIGSEGV,
		"PIPE": syscall.SIGPIPE, "ABRT": syscall.SIGABRT,
	}[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "probe: no signal", name)
		os.Exit(99) //nolint:forbidigo // a mistake in a case
	}
	return n
}

// restoreSignals restores the signals of the keyboard: shells ignore them in background jobs,
// and the tests may run as such a job.
func restoreSignals() {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			defaultSignal(sig)
		}
	}
}

func trap(name string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, number(name))
	go func() {
		_ = forever(c)
		fmt.Fprintln(os.Stdout, "got "+name)
		os.Exit(0) //nolint:forbidigo // in the middle of another word
	}()
}

func spawn(s *script, arg []string) error {
	block, err := s.takeBlock()
	if err != nil {
		return err
	}
	modes := strings.Split(arg[0], ",")
	has := func(mode string) bool {
		for _, m := range modes {
			if m == mode {
				return true
			}
		}
		return false
	}
	if has("double") {
		// The child in the middle starts the child and exits.
		inner := "setsid"
		if has("bare") {
			inner += ",bare"
		}
		block = append(append([]string{"spawn", inner}, block...), "end")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, block...) //nolint:noctx // it must outlive everything
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: has("setsid"), Setpgid: has("group")}
	if !has("quiet") {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if has("bare") {
		cmd.Env = []string{}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if has("wait") || has("double") {
		return cmd.Wait()
	}
	return nil
}

func crowd(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range n {
		if err := exec.Command(self, "exit", "0").Run(); err != nil { //nolint:noctx // ends at once
			return err
		}
	}
	return nil
}

func burn(ms string) error {
	n, err := strconv.Atoi(ms)
	if err != nil {
		return err
	}
	want := time.Duration(n) * time.Millisecond
	for {
		var taken syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &taken); err != nil {
			return err
		}
		if time.Duration(taken.Utime.Nano()+taken.Stime.Nano()) >= want {
			return nil
		}
	}
}

func hold(s *script, arg []string) error {
	n, err := strconv.Atoi(arg[0])
	if err != nil {
		return err
	}
	s.held = make([]byte, n)
	for i := 0; i < n; i += os.Getpagesize() {
		s.held[i] = 1
	}
	return nil
}
