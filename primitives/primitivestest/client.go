package primitivestest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// clientVariable holds a clientTask if the test's program was started as another client of the
// sandboxes: the same test runs again, and Run performs the task instead of the suite.
const clientVariable = "PRIMITIVESTEST_CLIENT"

// clientTask describes what another program does with a sandbox.
type clientTask struct {
	Dir string `json:"dir"` // for the harness
	// ID is the sandbox to attach to. If it is empty, the client creates a sandbox, by Create
	// or with the harness.
	ID     string           `json:"id"`
	Create *primitives.Spec `json:"create"`
	// Probe is the path of the probe on the host, for a new sandbox.
	Probe string `json:"probe"`
	// The client first reads File, and then starts Commands.
	Commands []primitives.Command `json:"commands"`
	File     string               `json:"file"`
	Hold     bool                 `json:"hold"`   // stay alive until killed
	Listen   bool                 `json:"listen"` // listen on a loopback address of the sandbox
}

// clientReport is the client's report of its task.
type clientReport struct {
	ID      string           `json:"id"`
	Paths   primitives.Paths `json:"paths"`
	Content string           `json:"content"`
	IDs     []string         `json:"ids"`     // of the started processes
	Outputs []string         `json:"outputs"` // first line of each
	Address string           `json:"address"` // of the listener
	Error   string           `json:"error"`
}

// reportPrefix marks the line with the report in the output of the test.
const reportPrefix = "primitivestest-client: "

// runAsClient performs the task in the environment, and reports whether there is one.
func runAsClient(t *testing.T, h Harness) bool {
	t.Helper()
	text, ok := os.LookupEnv(clientVariable)
	if !ok {
		return false
	}
	var task clientTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		t.Fatalf("%s: %v", clientVariable, err)
	}
	p, report, err := task.do(t.Context(), h)
	if err != nil {
		report.Error = err.Error()
	}
	line, err := json.Marshal(report)
	if err != nil {
		t.Fatalf("report: %v", err)
	}
	fmt.Fprintf(os.Stdout, "\n%s%s\n", reportPrefix, line)
	if task.Hold {
		// Until it is killed. Standard input reaches EOF if the parent has died.
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	if p != nil {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	return true
}

func (task clientTask) do(ctx context.Context, h Harness) (p primitives.EnvironmentPrimitive, report clientReport, err error) {
	switch {
	case task.Create != nil:
		provider, _ := h.Provider(task.Dir)
		p, err = provider.Create(ctx, *task.Create)
	case task.ID == "":
		p, err = h.Open(ctx, task.Dir)
	default:
		p, err = h.Attach(ctx, task.Dir, task.ID)
	}
	if err != nil {
		return nil, report, err
	}
	report.ID, report.Paths = p.ID(), p.Paths()
	if task.Probe != "" {
		binary, err := os.ReadFile(task.Probe)
		if err != nil {
			return p, report, err
		}
		if err := p.WriteFile(ctx, "probe", bytes.NewReader(binary), primitives.WriteOptions{Mode: 0o755}); err != nil {
			return p, report, err
		}
	}
	if task.File != "" {
		b, err := primitives.ReadFile(ctx, p, task.File, 0)
		if err != nil {
			return p, report, err
		}
		report.Content = string(b)
	}
	if task.Listen {
		l, err := primitives.Listen(ctx, p, "tcp", "127.0.0.1:0")
		if err != nil {
			return p, report, err
		}
		report.Address = l.Addr().String() // the listener ends with p
	}
	for _, cmd := range task.Commands {
		proc, err := p.Exec(ctx, cmd)
		if err != nil {
			return p, report, err
		}
		line, err := bufio.NewReader(proc.Stdout()).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return p, report, err
		}
		report.IDs = append(report.IDs, proc.ID())
		report.Outputs = append(report.Outputs, strings.TrimSuffix(line, "\n"))
	}
	return p, report, nil
}

// client starts another program with a task. It returns the program's report and a function
// that kills the program.
func (s *suite) client(t testingT, task clientTask) (report clientReport, kill func()) {
	t.Helper()
	task.Dir = s.dir
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatalf("task: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("own program: %v", err)
	}
	pattern := "^" + strings.ReplaceAll(s.self, "/", "$/^") + "$"
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self, "-test.run="+pattern, "-test.v")
	cmd.Env = append(os.Environ(), clientVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("client: %v", err)
	}
	done := false
	kill = func() {
		if !done {
			done = true
			_ = cmd.Process.Kill() // it may have exited already
			_ = in.Close()
			_ = cmd.Wait() // the status is that of a killed process
		}
	}
	t.Cleanup(kill)
	var all strings.Builder
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		all.WriteString(line)
		if text, ok := strings.CutPrefix(line, reportPrefix); ok {
			if err := json.Unmarshal([]byte(text), &report); err != nil {
				t.Fatalf("report of the client: %v", err)
			}
			break
		}
		if err != nil {
			t.Fatalf("the client gave no report: %v\n%s%s", err, all.String(), stderr.String())
		}
	}
	if report.Error != "" {
		t.Fatalf("the client failed: %s", report.Error)
	}
	if !task.Hold {
		// Discard the rest of the test's output.
		_, _ = io.Copy(io.Discard, out)
		done = true
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("the client: %v\n%s%s", err, all.String(), stderr.String())
		}
	}
	return report, kill
}

// probeFile writes the probe to a file of the host.
func (s *suite) probeFile(t testingT, c primitives.Capabilities) string {
	t.Helper()
	binary, err := s.probeFor(t, c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	name := filepath.Join(s.bin, fmt.Sprintf("client-%d", s.cases.Add(1)))
	if err := os.WriteFile(name, binary, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	return name
}
