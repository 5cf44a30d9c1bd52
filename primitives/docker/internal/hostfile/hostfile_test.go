package hostfile

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestAMissingFolderIsNamedBeforeTheAdvice(t *testing.T) {
	name := filepath.Join(t.TempDir(), "missing")
	o, err := Open(name)
	if err == nil {
		_ = o.Close()
	}
	if want := name + ": no such file or directory; make it first"; !errors.Is(err, fs.ErrNotExist) || err.Error() != "open "+want && err.Error() != "lstat "+want {
		t.Errorf("%v", err)
	}
}
