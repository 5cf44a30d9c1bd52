package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

func init() { //nolint:gochecknoinits // these programs need what only Linux has
	children["full"], children["readonly"] = fillDisk, openReadOnly
}

// Both programs mount file systems in their own mount namespace. The file systems end with the
// programs.
func TestAFullDiskAndOneThatCannotBeWrittenAreTold(t *testing.T) {
	for _, name := range []string{"full", "readonly"} {
		t.Run(name, func(t *testing.T) {
			cmd := childCommand(t, name, t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER}
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
			if out, err := cmd.Output(); err != nil || string(out) != "ok\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func small(ctx context.Context, dir string) (*Store, error) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	s, err := Config{MinFree: -1}.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	return s, s.Create(ctx, store.Record{ID: "s"})
}

func fillDisk(ctx context.Context, dir string) error {
	s, err := small(ctx, dir)
	if err != nil {
		return err
	}
	room := filepath.Join(dir, "room")
	if err := os.WriteFile(room, make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	var last uint64
	for err == nil {
		if err = s.Append(ctx, "s", numbered(last+1), numbered(last+2)); err == nil {
			last += 2
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("append to a full disk after event %d: %w", last, err)
	}
	_, err = s.PutBlobs(ctx, "s", blobs(content(3), make([]byte, 4<<20)))
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("put on a full disk: %w", err)
	}
	if err := checkAll(ctx, s, last); err != nil {
		return err
	}
	if err := os.Remove(room); err != nil {
		return err
	}
	if err := s.Append(ctx, "s", numbered(last+1)); err != nil {
		return fmt.Errorf("append when there is room again: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = Open(ctx, dir); err != nil {
		return err
	}
	if err := checkAll(ctx, s, last+1); err != nil {
		return err
	}
	fmt.Println("ok")
	return s.Close()
}

func openReadOnly(ctx context.Context, dir string) error {
	s, err := small(ctx, dir)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	if _, err = Open(ctx, dir); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("open on a disk that cannot be written: %w", err)
	}
	fmt.Println("ok")
	return nil
}

func checkAll(ctx context.Context, s *Store, last uint64) error {
	next := uint64(1)
	for ev, err := range s.Events(ctx, "s", 1) {
		if err != nil {
			return err
		}
		if ev.Seq != next || string(ev.Payload) != string(numbered(next).Payload) {
			return fmt.Errorf("event %d is %+v", next, ev)
		}
		next++
	}
	if next != last+1 {
		return fmt.Errorf("%d events of %d are there", next-1, last)
	}
	return nil
}
