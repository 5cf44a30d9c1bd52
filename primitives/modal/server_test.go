package modal_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

// serverVariable holds the path of an empty file in a process that serves as the server.
const serverVariable = "AGENTENV_TEST_MODAL_SERVER"

// serve runs a server in a process of its own, so that resources counted in the test's process
// are the client's alone. The first line of output contains the environment for clients. serve
// then reads IDs of sandboxes to destroy, and answers each with a line: an error, or nothing.
// It ends at EOF on its standard input.
func serve(config string, in io.Reader, out io.Writer) (err error) {
	s, err := testmodal.Start(context.Background(), testmodal.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	line, err := json.Marshal(s.Environ(config))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
		return err
	}
	for orders := bufio.NewScanner(in); orders.Scan(); {
		answer := ""
		if err := s.Destroy(orders.Text()); err != nil {
			answer = err.Error()
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return nil
}

// otherServer is a server in another process.
type otherServer struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// startServer starts a server that ends with the test, and points this test's environment at
// it.
func startServer(t *testing.T) *otherServer {
	t.Helper()
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), serverVariable+"="+config)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &otherServer{in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	line, err := s.out.ReadBytes('\n')
	var environ []string
	if err == nil {
		err = json.Unmarshal(line, &environ)
	}
	if err != nil {
		t.Fatalf("the server says %q, %v", line, err)
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
	return s
}

// destroy ends a sandbox as a machine failure does.
func (s *otherServer) destroy(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.in, id); err != nil {
		return err
	}
	answer, err := s.out.ReadString('\n')
	if err == nil && answer != "\n" {
		err = errors.New(strings.TrimSpace(answer))
	}
	return err
}
