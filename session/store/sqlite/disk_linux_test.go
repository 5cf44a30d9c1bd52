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
	children["full"], children["readonly"], children["room"] = fillDisk, openReadOnly, makeRoom
}

// Both programs mount file systems in their own mount namespace. The file systems end with the
// programs.
func TestAFullDiskAndOneThatCannotBeWrittenAreTold(t *testing.T) {
	for _, name := range []string{"full", "readonly", "room"} {
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

// fillUp fills the disk to the last byte.
func fillUp(dir string) error {
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return f.Close()
}

// makeRoom lists and removes sessions, and collects, on a disk that is full to the last byte.
func makeRoom(ctx context.Context, dir string) error {
	s, err := small(ctx, dir)
	if err != nil {
		return err
	}
	var seq uint64
	for err == nil && seq < 2000 {
		err = s.Append(ctx, "s", batch(&seq, 100)...)
	}
	if err == nil {
		err = s.Create(ctx, store.Record{ID: "other"})
	}
	if err = errors.Join(err, s.Close(), fillUp(dir)); err != nil {
		return err
	}
	if s, err = (Config{ReadOnly: true}).Open(ctx, dir); err != nil {
		return fmt.Errorf("open to read: %w", err)
	}
	n := 0
	for _, err := range s.List(ctx, store.Filter{}) {
		if n++; err != nil {
			return err
		}
	}
	if err := errors.Join(checkAll(ctx, s, seq), s.Close()); err != nil || n != 2 {
		return fmt.Errorf("%d sessions, %w", n, err)
	}
	// Without a minimum, as what is made must fit.
	if s, err = (Config{MinFree: -1}).Open(ctx, dir); err != nil {
		return fmt.Errorf("open to write: %w", err)
	}
	if err := fillUp(dir); err != nil { // again, as the reserve is used now
		return err
	}
	if err := os.Truncate(filepath.Join(dir, "filler"), 0); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	// The reserve is there again. This time the disk fills up while the store is open.
	if s, err = (Config{MinFree: -1}).Open(ctx, dir); err != nil {
		return err
	}
	if err := fillUp(dir); err != nil {
		return err
	}
	if err := s.Delete(ctx, "s"); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if _, err := s.Collect(ctx, false); err != nil {
		return fmt.Errorf("collect: %w", err)
	}
	if info, err := os.Stat(filepath.Join(dir, Database)); err != nil || info.Size() > 128<<10 {
		return fmt.Errorf("the database has %d bytes, %w", info.Size(), err)
	}
	if _, err := s.Load(ctx, "other"); err != nil {
		return err
	}
	fmt.Println("ok")
	return s.Close()
}

// openReadOnly reads stores on a disk that cannot be written: one that was closed, one whose
// program died, and that without the file in which programs share the state of the log.
func openReadOnly(ctx context.Context, dir string) error {
	s, err := small(ctx, dir)
	if err != nil {
		return err
	}
	if err := s.Append(ctx, "s", numbered(1)); err != nil {
		return err
	}
	for _, copied := range []struct{ to, without string }{{"died", ""}, {"shared", Database + "-shm"}} {
		if err := os.Mkdir(filepath.Join(dir, copied.to), 0o700); err != nil {
			return err
		}
		for _, name := range []string{Database, Database + "-wal", Database + "-shm"} {
			if name == copied.without {
				continue
			}
			if err := copyFile(filepath.Join(dir, name), filepath.Join(dir, copied.to, name)); err != nil {
				return err
			}
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	for _, name := range []string{".", "died", "shared"} {
		name = filepath.Join(dir, name)
		if _, err = Open(ctx, name); !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("open on a disk that cannot be written: %w", err)
		}
		s, err := (Config{ReadOnly: true}).Open(ctx, name)
		if err != nil {
			return fmt.Errorf("open to read: %w", err)
		}
		if err := checkAll(ctx, s, 1); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, lockErr := s.Lock(ctx, "s")
		for _, err := range []error{s.Append(ctx, "s", numbered(2)), s.Delete(ctx, "s"), s.Create(ctx, store.Record{ID: "t"}), lockErr} {
			if !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("a change: %w", err)
			}
		}
		if err := s.Close(); err != nil {
			return err
		}
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
