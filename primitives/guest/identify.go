package guest

import (
	"context"
	"fmt"
)

// Identity describes the files at some paths, as the guest's kernel identifies them. A host on
// the same kernel can compare it with its own open files.
type Identity struct {
	// Kernel identifies one boot of the guest's kernel; empty if it is unknown. Device and
	// inode numbers are comparable within one boot.
	Kernel string
	Files  []FileIdentity // in the order of the paths
}

// FileIdentity is one file or folder.
type FileIdentity struct {
	Dev, Ino uint64
	ReadOnly bool // it is in a read-only mount
	Denied   bool // the guest's user cannot reach it; nothing else is known
}

// Identify identifies the files at absolute paths of the sandbox. It follows links. A path
// without a file returns fs.ErrNotExist.
func (c *Sandbox) Identify(ctx context.Context, paths []string) (Identity, error) {
	var reply identifyReply
	err := c.ask(ctx, "identify", "", opIdentify, &identifyRequest{paths}, &reply)
	if err == nil && len(reply.Files) != len(paths) {
		err = c.fail("identify", "", fmt.Errorf("%w: %d answers to %d paths", errProtocol, len(reply.Files), len(paths)))
	}
	return Identity(reply), err
}

func (s *server) identify(op *operation) error {
	var req identifyRequest
	if err := op.request(&req); err != nil {
		return err
	}
	kernel, err := kernelName()
	if err != nil {
		return err
	}
	reply := identifyReply{Kernel: kernel, Files: make([]FileIdentity, len(req.Paths))}
	for i, path := range req.Paths {
		if reply.Files[i], err = identify(path); err != nil {
			return err
		}
	}
	return op.reply(&reply)
}

type identifyRequest struct{ Paths []string }

func (r *identifyRequest) code(c *codec) { codeStrings(c, &r.Paths) }

type identifyReply Identity

func (r *identifyReply) code(c *codec) {
	codeString(c, &r.Kernel)
	codeSlice(c, &r.Files, codeFileIdentity)
}

func codeFileIdentity(c *codec, v *FileIdentity) {
	c.uint64(&v.Dev)
	c.uint64(&v.Ino)
	c.bool(&v.ReadOnly)
	c.bool(&v.Denied)
}
