package testmodal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestASpaceHasARootAndProcessesOfItsOwn(t *testing.T) {
	if !isolated() {
		t.Skip("needs root")
	}
	base := t.TempDir()
	if err := makeBase(base); err != nil {
		t.Fatal(err)
	}
	s, err := newSpace(spaceOptions{dir: t.TempDir(), base: base})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var cmd *exec.Cmd
	err = s.inside(func() error {
		cmd = exec.Command("/bin/sh", "-c", "ls /; ls /root; ps ax; echo x > /usr/local/x; touch /tmp/y; mount; id; ls -l /dev /dev/pts")
		cmd.Stdout, cmd.Stderr = write, write
		cmd.Dir = "/root"
		return cmd.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := read.Read(b)
		out.Write(b[:n])
		if err != nil {
			break
		}
	}
	t.Log(cmd.Wait(), out.String())
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(upper(s.opened.dir, "usr"), "local/x")); err != nil {
		t.Error(err)
	}
}

func BenchmarkSpace(b *testing.B) {
	base := b.TempDir()
	if err := makeBase(base); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := newSpace(spaceOptions{dir: b.TempDir(), base: base})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.close(); err != nil {
			b.Fatal(err)
		}
	}
}
