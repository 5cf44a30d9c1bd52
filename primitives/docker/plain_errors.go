package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// statusErrors are what the statuses of plain/paths.sh mean.
func statusErrors() map[int]error {
	return map[int]error{
		10: fs.ErrNotExist, 11: fs.ErrPermission, 12: primitives.ErrIsDirectory, 13: primitives.ErrNotDirectory,
		14: primitives.ErrNotRegular, 15: primitives.ErrPathEscape, 16: fs.ErrExist, 17: primitives.ErrConflict,
		18: primitives.ErrNotEmpty, 19: primitives.ErrNoSpace, 20: fs.ErrInvalid, 21: syscall.ELOOP,
	}
}

// statusError is the error that the status of a request stands for. The text is
// what a program of the image said about it.
func statusError(status int, text string) error {
	if status == 0 {
		return nil
	}
	if err := statusErrors()[status]; err != nil {
		return err
	}
	const most = 200
	text = strings.TrimSpace(text)
	text = strings.ToValidUTF8(text[:min(len(text), most)], "?")
	if text == "" {
		text = "a program of the image failed with status " + strconv.Itoa(status)
	}
	return fmt.Errorf("%w: %s", errImage, text)
}

// errImage is a failure of a program of the image that has no name of its own.
var errImage = errors.New("the image's own commands could not do it")
