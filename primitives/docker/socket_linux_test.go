package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"
)

// linkEngine is a client of an engine that is never asked, with the folders of its
// containers in a place of the test's own.
func linkEngine(t *testing.T, host string) *client.Client {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	eng, err := client.NewClientWithOpts(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return eng
}

func TestTheFolderOfASocketMustBeOurs(t *testing.T) {
	replace := func(t *testing.T, name string, by func(name string) error) {
		t.Helper()
		if err := errors.Join(os.Rename(name, name+".old"), by(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, folder string){
		"a link": func(t *testing.T, f string) { replace(t, f, func(n string) error { return os.Symlink(n+".old", n) }) },
		"a file": func(t *testing.T, f string) {
			replace(t, f, func(n string) error { return os.WriteFile(n, nil, 0o755) })
		},
		"nothing":   func(t *testing.T, f string) { replace(t, f, func(string) error { return nil }) },
		"writable":  func(t *testing.T, f string) { must(t, os.Chmod(f, 0o777)) },
		"not ours":  func(t *testing.T, f string) { must(t, os.Chown(f, 65534, 65534)) },
		"base open": func(t *testing.T, f string) { must(t, os.Chmod(filepath.Dir(f), 0o755)) },
		"base a link": func(t *testing.T, f string) {
			replace(t, filepath.Dir(f), func(n string) error { return os.Symlink(n+".old", n) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			eng := linkEngine(t, "unix:///no/such.sock")
			folder, fresh := makeLink(eng, "box", Config{})
			if folder == "" || !fresh {
				t.Fatalf("makeLink = %q, %v", folder, fresh)
			}
			if name == "not ours" && os.Geteuid() != 0 {
				t.Fatal("run this as root: only root can give folders away")
			}
			change(t, folder)
			r := expect(folder, Config{})
			if r.socket != nil {
				_ = r.socket.Listener.Close()
				r.close()
				t.Error("a socket was made there")
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestASocketIsThereOnlyWhileAGuestIsExpected(t *testing.T) {
	eng := linkEngine(t, "unix:///no/such.sock")
	name := strings.Repeat("n", 128) // longer than a socket's path may be
	folder, _ := makeLink(eng, name, Config{})
	r := expect(folder, Config{})
	if r.socket == nil {
		t.Fatal("no socket")
	}
	file := filepath.Join(folder, filepath.Base(r.socket.Path))
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if err := r.socket.Listener.Close(); err != nil {
		t.Error(err)
	}
	r.close()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	if err := dropLink(eng, name); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestEnginesElsewhereAndNoSocketGetNoFolder(t *testing.T) {
	for host, cfg := range map[string]Config{
		"tcp://192.0.2.1:2376":  {},
		"unix:///no/such2.sock": {NoSocket: true},
	} {
		eng := linkEngine(t, host)
		if folder, _ := makeLink(eng, "box", cfg); folder != "" {
			t.Errorf("%s: %s", host, folder)
		}
		if r := expect(linkFolder(eng, "box"), cfg); r.socket != nil {
			t.Errorf("%s: a socket", host)
		}
	}
}

func TestTheLabelOfAForeignFolderIsNotFollowed(t *testing.T) {
	eng := linkEngine(t, "unix:///no/such.sock")
	ours, _ := makeLink(eng, "box", Config{})
	for label, want := range map[string]string{ours: ours, "": "", t.TempDir(): "", ours + "/../box": ""} {
		if got := linkOf(eng, map[string]string{labelSandbox: "box", labelLink: label}); got != want {
			t.Errorf("linkOf(%q) = %q", label, got)
		}
	}
}

func TestOnlyFoldersOfContainersThatAreGoneAreRemoved(t *testing.T) {
	eng := linkEngine(t, "unix:///no/such.sock")
	folders := map[string]string{}
	for _, name := range []string{"gone", "being-made", "alive"} {
		folder, _ := makeLink(eng, name, Config{})
		folders[name] = folder
	}
	_, _, unlock, ok := holdLink(eng, "being-made", Config{})
	if !ok {
		t.Fatal("no lock")
	}
	defer unlock()
	foreign := filepath.Join(linkBase(), "gone-00000000") // of another engine
	must(t, os.Mkdir(foreign, 0o755))
	folders["foreign"] = foreign
	// What a socket's name is must not matter to its removal.
	l, err := net.Listen("unix", filepath.Join(folders["gone"], "s"))
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
	}
	if err := dropLinks(eng, func(name string) bool { return name == "alive" }); err != nil {
		t.Fatal(err)
	}
	for name, folder := range folders {
		if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) != (name == "gone") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFolderThatIsRemovedBeforeItIsHeldIsMadeAgain(t *testing.T) {
	eng := linkEngine(t, "unix:///no/such.sock")
	folder, _ := makeLink(eng, "box", Config{})
	sweeps, ok := lockLink(folder, unix.LOCK_EX)
	if !ok {
		t.Fatal("no lock")
	}
	var holding sync.WaitGroup
	holding.Go(func() {
		_, fresh, unlock, ok := holdLink(eng, "box", Config{})
		if !ok || !fresh {
			t.Errorf("no folder is held, or another one's: %v, %v", ok, fresh)
			return
		}
		defer unlock()
		if _, ok := lockLink(folder, unix.LOCK_EX|unix.LOCK_NB); ok {
			t.Error("the folder is not held")
		}
	})
	awaitBlockedLock(t)
	must(t, dropLink(eng, "box"))
	sweeps()
	holding.Wait()
}

// awaitBlockedLock waits until this program waits for a lock.
func awaitBlockedLock(t *testing.T) {
	t.Helper()
	blocked := regexp.MustCompile(fmt.Sprintf(`-> FLOCK +ADVISORY +READ +%d `, os.Getpid()))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		locks, err := os.ReadFile("/proc/locks")
		must(t, err)
		if blocked.Match(locks) {
			return
		}
	}
	t.Fatal("nobody waits for the lock")
}
