package bundle

import (
	"io/fs"
	"path"
	"sync/atomic"
)

// carried holds the file system that the program passed to Embed.
var carried atomic.Pointer[fs.FS]

// Embed makes [Path] use the runners that the program carries, so that the program needs neither
// the Go toolchain nor a second file on its machine. The runners are the files named
// envrunner-OS-ARCH, such as envrunner-linux-amd64, in any folder of fsys, which is usually an
// embed.FS. A runner adds about 10 MB to the program. Call Embed at the start of main; it may be
// called from any goroutine, and again to replace fsys. Build a runner for a sandbox's platform
// with
//
//	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -tags nethttpomithttp2 -ldflags "-s -w" -o envrunner-linux-amd64 github.com/agentenv-dev/agentenv/runnerscripts/runner
//
// in the module of the program, so that both are of the same release.
func Embed(fsys fs.FS) { carried.Store(&fsys) }

// content returns the runner of that name that the program carries.
func content(name string) (data []byte, ok bool) {
	fsys := carried.Load()
	if fsys == nil {
		return embedded(name)
	}
	err := fs.WalkDir(*fsys, ".", func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || path.Base(file) != name {
			return err
		}
		if data, err = fs.ReadFile(*fsys, file); err != nil {
			return err
		}
		return fs.SkipAll
	})
	return data, err == nil && data != nil
}

// notCarried says why the program carries no runner for the platform.
func (f *finder) notCarried() string {
	if carried.Load() != nil {
		return "what bundle.Embed was given has no " + f.fileName()
	}
	return notEmbedded
}
