package input_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMain(m *testing.M) { testleak.Main(m) }

func fifo(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// No Open may block: a test that hangs has failed.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	pipe := fifo(t, dir)
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink("pipe", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, want := range map[string]error{
		pipe: primitives.ErrNotRegular, socket: primitives.ErrNotRegular, filepath.Join(dir, "link"): primitives.ErrNotRegular,
		"/dev/zero": primitives.ErrNotRegular, dir: primitives.ErrIsDirectory, filepath.Join(dir, "missing"): fs.ErrNotExist,
	} {
		var where *fs.PathError
		if _, err := input.ReadFile(name, 1); !errors.Is(err, want) || !errors.As(err, &where) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if name == "/dev/zero" || name == dir || name == socket {
			continue
		}
		if _, err := input.OpenIn(root, filepath.Base(name)); !errors.Is(err, want) {
			t.Errorf("%s in the root: %v, want %v", name, err, want)
		}
	}
	for _, name := range []string{socket, "/dev/zero", dir} {
		if _, err := input.OpenStream(t.Context(), name); err == nil {
			t.Errorf("%s is opened as a stream", name)
		}
	}
}

func TestWhatIsReadWholeIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := input.ReadFile(name, 5); err != nil || string(data) != "12345" {
		t.Errorf("%q, %v", data, err)
	}
	if data, err := input.ReadFile(name, 4); !errors.Is(err, primitives.ErrLimit) || data != nil {
		t.Errorf("%q, %v, want primitives.ErrLimit", data, err)
	}
	if err := os.Truncate(name, 1<<42); err != nil {
		t.Fatal(err)
	}
	if _, err := input.ReadStream(t.Context(), name, 4); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("a hole: %v, want primitives.ErrLimit", err)
	}
}

func TestAPipeIsReadAndEndsWithItsContext(t *testing.T) {
	pipe := fifo(t, t.TempDir())
	go func() { _ = os.WriteFile(pipe, []byte("late"), 0) }() // waits for the reader
	if data, err := input.ReadStream(t.Context(), pipe, 10); err != nil || string(data) != "late" {
		t.Errorf("%q, %v", data, err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() {
		_, err := input.ReadStream(ctx, pipe, 10)
		ended <- err
	}()
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("without a writer: %v, want the cause", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	r, err := input.OpenStream(ctx, pipe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString("a"); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	go func() {
		_, err := io.Copy(&got, r)
		ended <- err
	}()
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("with a writer that is silent: %v, want the cause", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
