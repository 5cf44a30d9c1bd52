package fastpath

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

	"golang.org/x/sys/unix"
)

// here is the address of an engine on this machine that gets no requests.
const here = "unix:///no/such.sock"

// ownBase keeps the folders of containers in a folder of the test's own.
func ownBase(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
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
			ownBase(t)
			folder, fresh := makeFolder(here, "box")
			if folder == "" || !fresh {
				t.Fatalf("makeFolder = %q, %v", folder, fresh)
			}
			if name == "not ours" && os.Geteuid() != 0 {
				t.Fatal("run this as root: only root can give folders away")
			}
			change(t, folder)
			if l, err := Listen(folder, "/at"); err == nil {
				_ = l.Socket.Listener.Close()
				l.Close()
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
	ownBase(t)
	name := strings.Repeat("n", 128) // longer than a socket's path may be
	folder, _ := makeFolder(here, name)
	r, err := Listen(folder, "/at")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, filepath.Base(r.Socket.Path))
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if err := r.Socket.Listener.Close(); err != nil {
		t.Error(err)
	}
	r.Close()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	if err := Remove(here, name); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestEnginesElsewhereGetNoFolder(t *testing.T) {
	ownBase(t)
	const elsewhere = "tcp://192.0.2.1:2376"
	if folder, _ := makeFolder(elsewhere, "box"); folder != "" || Folder(elsewhere, "box") != "" {
		t.Errorf("there is %q", folder)
	}
	if _, _, _, ok := Hold(elsewhere, "box"); ok {
		t.Error("a folder is held")
	}
}

func TestOnlyFoldersOfContainersThatAreGoneAreRemoved(t *testing.T) {
	ownBase(t)
	folders := map[string]string{}
	for _, name := range []string{"gone", "being-made", "alive"} {
		folder, _ := makeFolder(here, name)
		folders[name] = folder
	}
	_, _, unlock, ok := Hold(here, "being-made")
	if !ok {
		t.Fatal("no lock")
	}
	defer unlock()
	foreign := filepath.Join(base(), "gone-00000000") // of another engine
	must(t, os.Mkdir(foreign, 0o755))
	folders["foreign"] = foreign
	// The removal must not depend on a socket's name.
	l, err := net.Listen("unix", filepath.Join(folders["gone"], "s"))
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
	}
	if err := RemoveOrphans(here, func(name string) bool { return name == "alive" }); err != nil {
		t.Fatal(err)
	}
	for name, folder := range folders {
		if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) != (name == "gone") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFolderThatIsRemovedBeforeItIsHeldIsMadeAgain(t *testing.T) {
	ownBase(t)
	folder, _ := makeFolder(here, "box")
	sweeps, ok := lockFolder(folder, unix.LOCK_EX)
	if !ok {
		t.Fatal("no lock")
	}
	var holding sync.WaitGroup
	holding.Go(func() {
		_, fresh, unlock, ok := Hold(here, "box")
		if !ok || !fresh {
			t.Errorf("no folder is held, or another one's: %v, %v", ok, fresh)
			return
		}
		defer unlock()
		if _, ok := lockFolder(folder, unix.LOCK_EX|unix.LOCK_NB); ok {
			t.Error("the folder is not held")
		}
	})
	awaitBlockedLock(t)
	must(t, Remove(here, "box"))
	sweeps()
	holding.Wait()
}

// awaitBlockedLock waits until this program blocks on a lock.
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
