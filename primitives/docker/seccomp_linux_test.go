package docker_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// calls returns system calls, as perl makes them, that set the bits of a mode. A file "x" exists
// and is open as $f.
func calls(mode int) map[string]string {
	create, tmp := unix.O_CREAT|unix.O_WRONLY, unix.O_TMPFILE|unix.O_WRONLY
	list := map[string]string{
		"fchmod":             fmt.Sprintf(`syscall(%d, fileno($f), %d)`, unix.SYS_FCHMOD, mode),
		"fchmodat":           fmt.Sprintf(`syscall(%d, -100, $x, %d)`, unix.SYS_FCHMODAT, mode),
		"fchmodat2":          fmt.Sprintf(`syscall(%d, -100, $x, %d, 0)`, unix.SYS_FCHMODAT2, mode),
		"openat":             fmt.Sprintf(`syscall(%d, -100, $new, %d, %d)`, unix.SYS_OPENAT, create, mode),
		"openat, unnamed":    fmt.Sprintf(`my $d = syscall(%d, -100, $dir, %d, %d); syscall(%d, -100, "/proc/self/fd/$d", -100, $new, 0x400) if $d >= 0; $d`, unix.SYS_OPENAT, tmp, mode, unix.SYS_LINKAT),
		"openat2":            fmt.Sprintf(`my $how = pack("Q3", %d, %d, 0); syscall(%d, -100, $new, $how, 24)`, create, mode, unix.SYS_OPENAT2),
		"mknodat":            fmt.Sprintf(`syscall(%d, -100, $new, %d, 0)`, unix.SYS_MKNODAT, unix.S_IFREG|mode),
		"chmod of a program": fmt.Sprintf(`chmod(%d, $x) ? 0 : -1`, mode),
	}
	if runtime.GOARCH == "amd64" { // other architectures have no such calls
		list["chmod"] = fmt.Sprintf(`syscall(90, $x, %d)`, mode)
		list["creat"] = fmt.Sprintf(`syscall(85, $new, %d)`, mode)
		list["open"] = fmt.Sprintf(`syscall(2, $new, %d, %d)`, create, mode)
		list["mknod"] = fmt.Sprintf(`syscall(133, $new, %d, 0)`, unix.S_IFREG|mode)
	}
	return list
}

func TestASandboxCannotMakeSetUserIDProgramsOfItsMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"", "tester"} {
		cfg := config(t, testdocker.Debian(t))
		cfg.User = user
		cfg.Mounts = []docker.Mount{{Source: dir, Target: "/m"}}
		s := open(t, cfg)
		for _, bits := range []int{unix.S_ISUID, unix.S_ISGID, unix.S_ISUID | unix.S_ISGID} {
			for name, call := range calls(bits | 0o755) {
				made := script(t, s, `cd /m && rm -f x new && cp /bin/true x && perl -e '
					my ($x, $new, $dir) = ("x", "new", "."); open(my $f, "<", "x") or die; my $r = do { `+call+` }; print $r < 0 ? "$!" : "done"'`)
				if !made.Status.Success() || !strings.Contains(string(made.Stdout), "not permitted") && !strings.Contains(string(made.Stdout), "not implemented") {
					t.Errorf("%q: %s with %o: %+v %q %q", user, name, bits, made.Status, made.Stdout, made.Stderr)
				}
				for _, file := range []string{"x", "new"} {
					if info, err := os.Stat(filepath.Join(dir, file)); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
						t.Errorf("%q: %s has made %s %v", user, name, file, info.Mode())
					}
				}
			}
		}
		// Files without such bits can be made.
		output(t, s, "sh", "-ec", "cd /m; rm -f x new; cp -p /bin/true x; chmod 700 x; chmod a+rx x; mkdir -m 1777 d; mkfifo f; tar cf t x d; rm -r d; tar xpf t; rm -r x d f t")
		if res := script(t, s, `perl -e 'syscall(425, 1, "\0" x 120) < 0 or print "a ring"'`); len(res.Stdout) > 0 {
			t.Errorf("io_uring, which no filter sees: %s", res.Stdout)
		}
	}
	// If nothing of the machine is writable, programs may have the bits.
	cfg := config(t, testdocker.Debian(t))
	cfg.Mounts = []docker.Mount{{Source: dir, Target: "/m", ReadOnly: true}}
	output(t, open(t, cfg), "sh", "-ec", "cp /bin/true x; chmod 4755 x")
}

func TestCapabilitiesThatMakeDevicesOrPrivilegedProgramsNeedFoldersToStay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MKNOD", "cap_setfcap"} {
		cfg := config(t, testdocker.Busybox(t))
		cfg.CapAdd, cfg.Workspace = []string{name}, t.TempDir()
		if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "cap_add[0]") {
			t.Errorf("%s with a workspace: %v", name, err)
		}
		cfg.Mounts, cfg.Workspace = []docker.Mount{{Source: cfg.Workspace, Target: "/m", ReadOnly: true}}, ""
		open(t, cfg)
	}
}
