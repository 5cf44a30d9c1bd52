package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// openFiles counts the open files of this program.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// sameFiles waits until no more files are open than before.
func sameFiles(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(bound); openFiles(t) > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are open, before there were %d", openFiles(t), before)
		}
	}
}

// piper is a fake that also implements ExecOutput.
type piper struct{ *fake }

// ExecOutput starts cat, and copies its output to stdout.
func (p *piper) ExecOutput(ctx context.Context, cmd primitives.Command, stdout, stderr *os.File) (primitives.Process, error) {
	proc, err := p.Exec(ctx, primitives.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		return nil, err
	}
	out, err := dup(stdout)
	if err != nil {
		return nil, errors.Join(err, proc.Close())
	}
	go func() { // stands in for the command
		_, _ = io.Copy(out, proc.Stdout())
		_ = out.Close()
	}()
	return proc, nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(f.Fd()))
	return os.NewFile(uintptr(fd), "output"), err
}

// overSocket serves p over a socket pair, which can pass descriptors.
func overSocket(t *testing.T, p primitives.EnvironmentPrimitive) (*Sandbox, *net.UnixConn) {
	t.Helper()
	host, guest := socketPair(t)
	served := make(chan error, 1)
	go func() {
		a := &handshakeResult{rw: guest, in: guest, pipes: guest}
		served <- serve(context.WithoutCancel(t.Context()), a, p, ServeConfig{Logger: hclog.NewNullLogger()})
	}()
	c, err := newSandbox(&handshakeResult{rw: host, in: host, pipes: host}, nil, Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		within(t, served)
	})
	return c, host
}

func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // the connection has its own
		conns[i] = c.(*net.UnixConn)
	}
	t.Cleanup(func() { _ = conns[0].Close(); _ = conns[1].Close() })
	return conns[0], conns[1]
}

func TestTheEndOfAPipeIsOnlyBelievedIfTheGuestLives(t *testing.T) {
	for _, dies := range []bool{false, true} {
		c, way := overSocket(t, &piper{newFake(t)})
		p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(p.Stdin(), "part"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(p.Stdout(), got); err != nil || string(got) != "part" {
			t.Fatalf("%q, %v", got, err)
		}
		if dies {
			_ = way.Close() // its commands end with it, and so does the pipe
		} else if err := p.Stdin().Close(); err != nil {
			t.Error(err)
		}
		n, err := p.Stdout().Read(got)
		if dies && !errors.Is(err, primitives.ErrUnavailable) || !dies && err != io.EOF || n != 0 { //nolint:errorlint // the bare io.EOF is the contract
			t.Errorf("the guest dies %v: Read = %d, %v", dies, n, err)
		}
		_ = p.Close()
	}
}

func TestDescriptorsThatAGuestPassesAreClosed(t *testing.T) {
	host, guest := socketPair(t)
	c, err := newSandbox(&handshakeResult{rw: host, in: host, pipes: host}, nil, Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := openFiles(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ping := muxFrame(muxPing, muxSYN, 0, 1)
	for range 10 {
		rights := syscall.UnixRights(int(null.Fd()), int(null.Fd()), int(null.Fd()))
		if _, _, err := guest.WriteMsgUnix(ping, rights, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(guest, make([]byte, muxHeader)); err != nil { // the ping was read
			t.Fatal(err)
		}
	}
	if n := openFiles(t); n > before+1 {
		t.Errorf("the host has %d new files", n-before-1)
	}
	// A frame that announces descriptors is an error, too.
	if _, err := guest.Write(muxFrame(muxData, muxRights, 1, 0)); err != nil {
		t.Fatal(err)
	}
	within(t, c.Done())
}

func TestDescriptorsThatBelongToNothingEndTheHost(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ping, marked := muxFrame(muxPing, muxSYN, 0, 1), muxFrame(muxData, muxSYN|muxRights, 1, 0)
	for name, send := range map[string][][]byte{
		"none where some are announced": {nil, marked},
		"some with no frame":            {ping, ping},
		"twice before their frame":      {ping, marked[:4]},
		"more than a frame may have":    {marked},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			host, guest := socketPair(t)
			mux, err := newSession(&handshakeResult{rw: guest, in: guest, pipes: guest}, false, 0, hclog.NewNullLogger())
			if err != nil {
				t.Fatal(err)
			}
			go silence(host)
			fds := []int{int(null.Fd())}
			if len(send) == 1 {
				fds = []int{fds[0], fds[0], fds[0], fds[0]}
			}
			for _, b := range send {
				if b == nil {
					fds = nil
					continue
				}
				if _, _, err := host.WriteMsgUnix(b, syscall.UnixRights(fds...), nil); err != nil {
					break
				}
			}
			within(t, mux.CloseChan())
			_ = mux.Close()
			_ = host.Close()
			sameFiles(t, before)
		})
	}
}

func TestACommandWithoutItsPipesIsRefused(t *testing.T) {
	c, _ := overSocket(t, &piper{newFake(t)})
	cmd := primitives.Command{Args: []string{"cat"}}
	k, err := c.start(t.Context(), "exec", "cat", opExec, &execRequest{Token: 1, Cmd: cmd, Pipes: true})
	if err != nil {
		t.Fatal(err)
	}
	defer k.end()
	var started startedReply
	if err := k.reply(&started); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("the answer: %v", err)
	}
}

func TestMuchDataTakesThePipeAndIsWhole(t *testing.T) {
	f := newFake(t)
	c, way := overSocket(t, f)
	before := openFiles(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	name := filepath.Join(f.Paths().Workspace, "big")
	if err := c.WriteFile(t.Context(), "big", bytes.NewReader(content), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes were written, %v", len(got), err)
	}
	r, err := c.Open(t.Context(), "big")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes were read, %v", len(got), err)
	}
	_ = r.Close()
	sameFiles(t, before)

	// A source that fails is an error, and the file is unchanged.
	failing := io.MultiReader(bytes.NewReader(content[:1<<20]), errReader{})
	if err := c.WriteFile(t.Context(), "big", failing, primitives.WriteOptions{}); !errors.Is(err, errSource) {
		t.Errorf("WriteFile: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	blocked, w := io.Pipe()
	go func() {
		_, _ = w.Write(content[:1<<20])
		cancel()
	}()
	if err := c.WriteFile(ctx, "big", blocked, primitives.WriteOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteFile: %v", err)
	}
	_ = w.Close()
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes are left, %v", len(got), err)
	}
	sameFiles(t, before)

	// A guest that ends during a read is an error, too.
	if r, err = c.Open(t.Context(), "big"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 100<<10)); err != nil {
		t.Fatal(err)
	}
	_ = way.Close()
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("%d more bytes were read, %v", n, err)
	}
	_ = r.Close()
}

var errSource = errors.New("the source failed")

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errSource }
