package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestPortReachesASandboxWithoutNetwork fetches a page from a server in a container, as a
// browser would.
func TestPortReachesASandboxWithoutNetwork(t *testing.T) {
	env, err := environment.Create(t.Context(), environment.Config{Sandbox: environment.Sandbox{
		Type:     "docker",
		Spec:     primitives.Spec{Image: testdocker.Node(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second},
		Provider: &docker.Provider{Pull: docker.PullNever},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out, outW := io.Pipe()
	var errOut bytes.Buffer
	code := make(chan int, 1)
	var running sync.WaitGroup
	running.Go(func() {
		code <- Execute(ctx, strings.NewReader(""), outW, &errOut, []string{"port", env.ID(), "8080", "--sandbox", "docker", "--listen", "127.0.0.1:0"})
		_ = outW.Close()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		running.Wait()
		t.Fatalf("%v: %s", err, errOut.String())
	}
	address, _, _ := strings.Cut(line, " ")
	get := func() (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/page", http.NoBody)
		if err != nil {
			return "", err
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), err
	}
	if page, err := get(); err == nil {
		t.Errorf("without a server: %q", page)
	}
	const serve = `require("http").createServer((q, r) => r.end("hello from " + q.url)).listen(8080, "127.0.0.1")`
	server, err := env.Primitive().Exec(t.Context(), primitives.Command{Args: []string{"node", "-e", serve}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var page string
	// The server needs a moment to listen.
	for page, err = get(); err != nil && t.Context().Err() == nil; page, err = get() {
	}
	if page != "hello from /page" {
		t.Errorf("the page is %q, %v", page, err)
	}
	interrupt()
	if got := <-code; got != exitInterrupted {
		t.Errorf("status %d: %s", got, errOut.String())
	}
	running.Wait()
	if !strings.Contains(errOut.String(), "nothing listens on port 8080 of the sandbox (yet)") {
		t.Errorf("it said %q", errOut.String())
	}
}

// Other users of the machine may connect to any of its ports, but not to a socket of the user.
func TestAPortAtAUnixSocketIsTheUsersAlone(t *testing.T) {
	t.Chdir(t.TempDir())
	ln, err := listen(t.Context(), "unix:web.sock")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat("web.sock"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := listen(t.Context(), "unix:web.sock"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second one: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("web.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its end: %v", err)
	}
}

func TestPortRefusesWhatIsNoPort(t *testing.T) {
	for _, args := range [][]string{{"port", "x", "web"}, {"port", "x", "0"}, {"port", "x", "70000"}, {"port", "x"}} {
		var out, errOut bytes.Buffer
		if code := Execute(t.Context(), nil, &out, &errOut, args); code != exitUsage {
			t.Errorf("%q: status %d, %s", args, code, errOut.String())
		}
	}
}
