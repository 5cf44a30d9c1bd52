package docker_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestAWrongConfigurationSaysWhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, `{"syscalls": []}`)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/var/run", link); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "socket") // another name of the engine's socket
	if err := os.Symlink("/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	mount := func(source, target string) func(*docker.Config) {
		return func(c *docker.Config) {
			c.Mounts = []docker.Mount{{Source: dir, Target: "/first"}, {Source: source, Target: target}}
		}
	}
	workspaceAt := func(source, target string) func(*docker.Config) {
		return func(c *docker.Config) { c.Workspace, c.WorkspacePath = source, target }
	}
	port := func(p docker.Port) func(*docker.Config) {
		return func(c *docker.Config) { c.Network, c.Publish = "bridge", []docker.Port{p} }
	}
	good := config(t, testdocker.Busybox(t))
	for name, c := range map[string]struct {
		change func(*docker.Config)
		where  string
		want   error
	}{
		"an image with a space":          {func(c *docker.Config) { c.Image = "a b" }, "image", fs.ErrInvalid},
		"hardly a processor":             {func(c *docker.Config) { c.CPUs = 0.001 }, "cpus", fs.ErrInvalid},
		"no number of processors":        {func(c *docker.Config) { c.CPUs = math.NaN() }, "cpus", fs.ErrInvalid},
		"more processors than there are": {func(c *docker.Config) { c.CPUs = 9999 }, "CPUs", fs.ErrInvalid},
		"two groups":                     {func(c *docker.Config) { c.User = "a:b:c" }, "user", fs.ErrInvalid},
		"a variable without a name":      {func(c *docker.Config) { c.Env = map[string]string{"A": "1", "": "secret"} }, "env", fs.ErrInvalid},
		"a label without a name":         {func(c *docker.Config) { c.Labels = map[string]string{"": "x"} }, "labels", fs.ErrInvalid},
		"a label of ours":                {func(c *docker.Config) { c.Labels = map[string]string{"dev.agentenv.sandbox": "x"} }, "labels", fs.ErrInvalid},
		"another container's network":    {func(c *docker.Config) { c.Network = "container:x" }, "network", fs.ErrInvalid},
		"another processor":              {func(c *docker.Config) { c.Platform = "linux/s390x" }, "linux/s390x", errors.ErrUnsupported},
		"a relative workspace":           {func(c *docker.Config) { c.Workspace = "." }, "workspace", fs.ErrInvalid},
		"a missing workspace":            {func(c *docker.Config) { c.Workspace = dir + "/missing" }, "workspace", fs.ErrNotExist},
		"a workspace that is a file":     {func(c *docker.Config) { c.Workspace = file }, "workspace: " + file + ": not a directory; name a folder", primitives.ErrNotDirectory},
		"a mount at the workspace":       {func(c *docker.Config) { c.Mounts = []docker.Mount{{Source: dir, Target: "/workspace"}} }, "workspace_path", fs.ErrInvalid},
		"a mount in the workspace":       {func(c *docker.Config) { c.Mounts = []docker.Mount{{Source: dir, Target: "/workspace/a"}} }, "mounts[0].target", fs.ErrInvalid},
		"a mount around its path": {func(c *docker.Config) {
			c.Mounts, c.WorkspacePath = []docker.Mount{{Source: dir, Target: "/src"}}, "/src/a"
		}, "mounts[0].target", fs.ErrInvalid},
		"a path in a read-only root": {func(c *docker.Config) { c.ReadOnly, c.WorkspacePath = true, "/w" }, "workspace_path", fs.ErrInvalid},
		"a relative path for it":     {workspaceAt(dir, "w"), "workspace_path", fs.ErrInvalid},
		"the root as its path":       {workspaceAt(dir, "/"), "workspace_path", fs.ErrInvalid},
		"the kernel as its path":     {workspaceAt(dir, "/proc/x"), "workspace_path", fs.ErrInvalid},
		"the guest as its path":      {workspaceAt(dir, "/agentenv"), "workspace_path", fs.ErrInvalid},
		"a mount at its path": {func(c *docker.Config) {
			workspaceAt(dir, "/m")(c)
			c.Mounts = []docker.Mount{{Source: dir, Target: "/m"}}
		}, "mounts[0].target", fs.ErrInvalid},
		"a workspace with the socket": {func(c *docker.Config) { c.Workspace = "/run" }, "workspace", fs.ErrInvalid},

		"no capability":             {func(c *docker.Config) { c.CapAdd = []string{"CHOWN", "not one"} }, "cap_add[1]", fs.ErrInvalid},
		"an unknown capability":     {func(c *docker.Config) { c.CapAdd = []string{"NO_SUCH"} }, "NO_SUCH", fs.ErrInvalid},
		"all capabilities":          {func(c *docker.Config) { c.CapAdd = []string{"all"} }, "cap_add[0]", fs.ErrInvalid},
		"a capability to break out": {func(c *docker.Config) { c.CapAdd = []string{"cap_sys_admin"} }, "cap_add[0]", fs.ErrInvalid},

		"no runner":              {func(c *docker.Config) { c.Runner = "" }, "runner", fs.ErrInvalid},
		"a missing runner":       {func(c *docker.Config) { c.Runner = dir + "/missing" }, "runner", fs.ErrNotExist},
		"a folder as the runner": {func(c *docker.Config) { c.Runner = dir }, "runner", fs.ErrInvalid},

		"no filter of system calls":  {func(c *docker.Config) { c.Seccomp = "unconfined" }, "seccomp", fs.ErrInvalid},
		"a missing filter":           {func(c *docker.Config) { c.Seccomp = dir + "/missing" }, "seccomp", fs.ErrNotExist},
		"a filter without an action": {func(c *docker.Config) { c.Seccomp = file }, "seccomp", fs.ErrInvalid},
		"a folder as a filter":       {func(c *docker.Config) { c.Seccomp = dir }, "seccomp", fs.ErrInvalid},

		"a relative source":                     {mount("file", "/m"), "mounts[1].source", fs.ErrInvalid},
		"a relative target":                     {mount(dir, "m"), "mounts[1].target", fs.ErrInvalid},
		"the root as a target":                  {mount(dir, "/x/.."), "mounts[1].target", fs.ErrInvalid},
		"the guest as a target":                 {mount(dir, "/agentenv/envrunner"), "mounts[1].target", fs.ErrInvalid},
		"the kernel as a target":                {mount(dir, "/proc/sys"), "mounts[1].target", fs.ErrInvalid},
		"a target twice":                        {mount(dir, "/first/"), "mounts[1].target", fs.ErrInvalid},
		"a missing source":                      {mount(dir+"/missing", "/m"), "mounts[1].source", fs.ErrNotExist},
		"the whole machine":                     {mount("/", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the engine's socket":                   {mount("/var/run/docker.sock", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the socket by its other name":          {mount("/run/docker.sock", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the socket's folder":                   {mount("/run", "/m"), "mounts[1].source", fs.ErrInvalid},
		"a writable path that leads out":        {func(c *docker.Config) { c.Writable = []string{".git", "../x"} }, "writable[1]", fs.ErrInvalid},
		"an absolute writable path":             {func(c *docker.Config) { c.Writable = []string{"/.git"} }, "writable[0]", fs.ErrInvalid},
		"a writable path below a protected one": {func(c *docker.Config) { c.Writable = []string{".vscode/settings.json"} }, "writable[0]: .vscode/settings.json cannot be writable alone; give .vscode,", fs.ErrInvalid},
		"a writable hook":                       {func(c *docker.Config) { c.Writable = []string{".git", ".git/hooks/x"} }, "give .git/hooks,", fs.ErrInvalid},
		"a link to the socket":                  {mount(socket, "/m"), "mounts[1].source", fs.ErrInvalid},
		"a link to the folder":                  {mount(link, "/m"), "mounts[1].source", fs.ErrInvalid},
		"below a link":                          {mount(link+"/containerd/../docker.sock", "/m"), "mounts[1].source", fs.ErrInvalid},
		"containerd":                            {mount("/run/containerd", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the data of all containers":            {mount("/var/lib/docker/overlay2", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the kernel":                            {mount("/proc/self", "/m"), "mounts[1].source", fs.ErrInvalid},
		"devices":                               {mount("/dev", "/m"), "mounts[1].source", fs.ErrInvalid},
		"the machine of another engine": {func(c *docker.Config) {
			c.Host = "tcp://127.0.0.1:1"
			mount("/../var", "/m")(c)
		}, "mounts[1].source", fs.ErrInvalid},

		"no port":               {port(docker.Port{}), "publish[0].container", fs.ErrInvalid},
		"a port above all":      {port(docker.Port{Container: 1, Host: 1 << 16}), "publish[0].host", fs.ErrInvalid},
		"another protocol":      {port(docker.Port{Container: 1, Protocol: "icmp"}), "publish[0].protocol", fs.ErrInvalid},
		"no address":            {port(docker.Port{Container: 1, HostIP: "localhost"}), "publish[0].host_ip", fs.ErrInvalid},
		"a port and no network": {func(c *docker.Config) { c.Publish = []docker.Port{{Container: 1}} }, "ports", fs.ErrInvalid},
		"a port twice": {func(c *docker.Config) {
			c.Network, c.Publish = "bridge", []docker.Port{{Container: 1, Host: 2}, {Container: 3, Host: 2, Protocol: "tcp"}}
		}, "publish[1]", fs.ErrInvalid},
		"an address with a password": {func(c *docker.Config) { c.Host = "tcp://me:secret@host:1" }, "address", fs.ErrInvalid},
		"an address without a host":  {func(c *docker.Config) { c.Host = "tcp://" }, "address", fs.ErrInvalid},
		"an address of another kind": {func(c *docker.Config) { c.Host = "fd://me:secret@3" }, "address", fs.ErrInvalid},
		"an option for ssh":          {func(c *docker.Config) { c.Host = "ssh://-oProxyCommand=secret/" }, "ssh", fs.ErrInvalid},
		"an option as ssh's user":    {func(c *docker.Config) { c.Host = "ssh://-lroot@host" }, "ssh", fs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			s, err := docker.New(t.Context(), cfg)
			if err == nil {
				_, terr := s.Terminate(t.Context())
				t.Fatal("no error", errors.Join(terr, s.Close()))
			}
			if _, typed := errors.AsType[*primitives.Error](err); !typed || !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), c.where) {
				t.Errorf("%q does not say where: %s", err, c.where)
			}
			if strings.Contains(err.Error(), "secret") && name != "an option for ssh" {
				t.Errorf("%q tells a secret", err)
			}
		})
	}
}

func TestADiskLimitHoldsOrIsRefused(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Disk = 64 << 20
	s, err := docker.New(t.Context(), cfg)
	if errors.Is(err, errors.ErrUnsupported) {
		if !strings.Contains(err.Error(), "disk") {
			t.Errorf("%v does not say where", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	res, rerr := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", "head -c 100000000 /dev/zero >/big"}}, primitives.RunOptions{})
	_, err = s.Terminate(t.Context())
	if err := errors.Join(rerr, err); err != nil || res.Status.Success() {
		t.Errorf("%+v, %v", res.Status, err)
	}
}
