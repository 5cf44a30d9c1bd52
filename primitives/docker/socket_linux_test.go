package docker

import (
	"testing"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
)

func TestTheLabelOfAForeignFolderIsNotFollowed(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	eng, err := client.NewClientWithOpts(client.WithHost("unix:///no/such.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = eng.Close() }()
	ours := fastpath.Folder(eng.DaemonHost(), "box")
	for label, want := range map[string]string{ours: ours, "": "", t.TempDir(): "", ours + "/../box": ""} {
		if got := linkOf(eng, map[string]string{labelSandbox: "box", labelLink: label}); got != want {
			t.Errorf("linkOf(%q) = %q", label, got)
		}
	}
}

func TestWithoutASocketNoFolderIsListenedIn(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const here = "unix:///no/such.sock"
	folder, _, unlock, ok := fastpath.Hold(here, "box")
	if !ok {
		t.Fatal("no folder")
	}
	defer unlock()
	for _, noSocket := range []bool{false, true} {
		l := expect(folder, Config{Provider: Provider{NoSocket: noSocket}})
		if listens := l.Socket != nil; listens == noSocket {
			t.Errorf("NoSocket is %v: there is a socket: %v", noSocket, listens)
		}
		if l.Socket != nil {
			_ = l.Socket.Listener.Close()
		}
		l.Close()
	}
}
