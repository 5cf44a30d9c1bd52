package testmodal

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// snapshot creates an image with a new layer: the files written in the sandbox.
func (sb *sandbox) snapshot() (*image, error) {
	layer, err := sb.server.images.newLayer()
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := copyTree(upper(sb.space.opened.dir, part), upper(layer, part)); err != nil {
			return nil, err
		}
	}
	return sb.server.images.add(&image{
		layers: append([]string{layer}, sb.image.layers...), env: sb.image.env, workdir: sb.image.workdir,
	}), nil
}

// snapshotDirectory creates an image of the content of one directory.
func (sb *sandbox) snapshotDirectory(path string) (*image, error) {
	layer, err := sb.server.images.newLayer()
	if err != nil {
		return nil, err
	}
	var resolved string
	err = sb.space.inside(func() (err error) {
		resolved, err = filepath.EvalSymlinks(path)
		return err
	})
	if err != nil {
		return nil, err
	}
	if sb.space.init != nil {
		resolved = filepath.Join(fmt.Sprintf("/proc/%d/root", sb.space.init.Process.Pid), resolved)
	}
	if err := copyTree(resolved, upper(layer, parts[0])); err != nil {
		return nil, err
	}
	return sb.server.images.add(&image{layers: []string{layer}, partial: true}), nil
}

// mountImage mounts an image at a path of the sandbox. Nil means an empty directory.
func (sb *sandbox) mountImage(path string, img *image) error {
	if !isolated() {
		return fmt.Errorf("mounting needs root")
	}
	dir, err := os.MkdirTemp(sb.dir, "mount-")
	if err != nil {
		return err
	}
	opts := spaceOptions{dir: dir, base: filepath.Join(dir, "empty")}
	if img != nil {
		opts.layers = img.layers
		if !img.partial {
			opts.base = sb.server.base
		}
	}
	if err := opts.makeDirs(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "empty"), 0o755); err != nil {
		return err
	}
	tree := -1
	err = onThread(func() error {
		if err := privateMounts(); err != nil {
			return err
		}
		target := filepath.Join(dir, "merged")
		if err := opts.mountLayers(target, "root", opts.base); err != nil {
			return err
		}
		if img != nil && !img.partial {
			if err := opts.mountLayers(filepath.Join(target, "usr"), "usr", "/usr"); err != nil {
				return err
			}
		}
		tree, err = unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	return sb.space.inside(func() error { return attach(tree, path) })
}

// unmountImage undoes mountImage.
func (sb *sandbox) unmountImage(path string) error {
	return sb.space.inside(func() error { return unix.Unmount(path, unix.MNT_DETACH) })
}

// attach mounts a tree at a path in the thread's root.
func attach(tree int, path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
