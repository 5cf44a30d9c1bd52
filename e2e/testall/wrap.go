package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const (
	// wrapVerb makes this program run a test program and report what it cost.
	wrapVerb = "wrap"
	// reportVariable names the folder for reports. packageVariable names the package that reports:
	// it is a part of the names of its files.
	reportVariable  = "AGENTENV_TEST_REPORT"
	packageVariable = "AGENTENV_TEST_PACKAGE"
)

// wrap runs a test program and reports the processor time of the program and of all descendants
// that were waited for. go test starts wrap in the folder of the package.
func wrap(root string, command []string) int {
	runtime.LockOSThread() // the death signal comes when the thread ends that started the child
	name, err := reportName(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...) // go test ends it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// GOTMPDIR is for the go command. In a test it would be where TempDir makes folders.
	cmd.Env = append(os.Environ(), "GOTMPDIR=", packageVariable+"="+name)
	cmd.SysProcAttr = endWithParent()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err := report(name, cpu.Seconds()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// reportName returns the working folder, relative to the module, as a part of a file name.
func reportName(root string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(root, dir)
	return strings.ReplaceAll(filepath.ToSlash(rel), "/", "-"), err
}

// report adds a line to the file of processor times of a package.
func report(name string, seconds float64) error {
	f, err := os.OpenFile(filepath.Join(os.Getenv(reportVariable), name+".cpu"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(f, "%.2f\n", seconds); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// reported returns the sum of the numbers that a package reported.
func (r *runner) reported(path, kind string) (sum float64) {
	name := strings.ReplaceAll(strings.TrimPrefix(path, module), "/", "-")
	data, _ := os.ReadFile(filepath.Join(r.dir, name+"."+kind)) // missing if there was nothing to report
	for field := range strings.FieldsSeq(string(data)) {
		n, _ := strconv.ParseFloat(field, 64)
		sum += n
	}
	return sum
}
