//go:build !linux

package guest

import (
	"errors"
	"fmt"
)

func kernelName() (string, error) {
	return "", fmt.Errorf("%w: only Linux names the files of a mount", errors.ErrUnsupported)
}

func identify(string) (FileIdentity, error) { return FileIdentity{}, errors.ErrUnsupported }
