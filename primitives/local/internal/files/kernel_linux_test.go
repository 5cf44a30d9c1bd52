package files

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// File operations stay in the workspace while a process of the sandbox swaps a directory for a link
// as fast as it can.
func TestSwappingADirectoryForALinkNeverLeadsOut(t *testing.T) {
	f, ws, outside := hostile(t)
	must(t, os.MkdirAll(ws+"/swap", 0o755))
	must(t, os.WriteFile(ws+"/swap/secret", []byte("fine"), 0o644))
	must(t, os.Symlink("../workspace-evil", ws+"/evil"))
	ctx, cancel := context.WithCancel(t.Context())
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, ws+"/swap", unix.AT_FDCWD, ws+"/evil", unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer attacker.Wait()
	defer cancel()
	inside, refused := 0, 0
	// Continue longer if the attacker gets no processor meanwhile.
	for i := 0; i < 1000 || (inside == 0 || refused == 0) && i < 100_000; i++ {
		got, err := read(ctx, f, "swap/secret")
		switch {
		case errors.Is(err, primitives.ErrPathEscape):
			refused++
		case err == nil && got != "secret":
			inside++
		case err == nil:
			t.Fatal("read the secret")
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
		_ = write(ctx, f, "swap/secret", "fine", primitives.WriteOptions{})
		_ = write(ctx, f, "swap/new/file", "fine", primitives.WriteOptions{})
		_ = f.Remove(ctx, "swap/new", true)
		_ = f.Move(ctx, "swap/secret", "swap/moved")
		_ = f.Move(ctx, "swap/moved", "swap/secret")
		if infos, err := f.List(ctx, "swap", primitives.ListOptions{}); err == nil {
			for _, info := range infos {
				if info.Size == 6 {
					t.Fatal("listed the outside")
				}
			}
		}
	}
	cancel()
	attacker.Wait()
	if inside == 0 || refused == 0 {
		t.Errorf("the race was not run: %d inside, %d refused", inside, refused)
	}
	wantFile(t, outside+"/secret", "secret")
	if got := entries(t, outside); len(got) != 1 {
		t.Errorf("outside: %q", got)
	}
}

func TestFullDiskIsNoSpaceAndKeepsTheOldFile(t *testing.T) {
	f, _ := open(t)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k"); err != nil {
		// Without permission to mount, use a device that is always full: it returns the same error.
		err := f.fail("write", "x", fillFull(t))
		if !errors.Is(err, primitives.ErrNoSpace) {
			t.Errorf("got %v", err)
		}
		return
	}
	t.Cleanup(func() { must(t, syscall.Unmount(small, 0)) })
	put(t, small+"/file", "old")
	err := f.WriteFile(t.Context(), small+"/file", bytes.NewReader(bytes.Repeat([]byte("x"), 1<<20)), primitives.WriteOptions{}) // zeros would take no space
	if !errors.Is(err, primitives.ErrNoSpace) {
		t.Errorf("got %v", err)
	}
	wantFile(t, small+"/file", "old")
	if got := entries(t, small); len(got) != 1 {
		t.Errorf("left %q", got)
	}
	must(t, syscall.Mount("tmpfs", small, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	if err := write(t.Context(), f, small+"/file", "x", primitives.WriteOptions{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("read-only file system: %v", err)
	}
	if err := write(t.Context(), f, small+"/new", "x", primitives.WriteOptions{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("read-only file system, new file: %v", err)
	}
}

func fillFull(t *testing.T) error {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	_, err = full.Write([]byte("x"))
	return err
}
