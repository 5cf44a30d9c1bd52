package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// noise returns bytes that no compression makes smaller.
func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// edited returns the content after some edits at random places.
func edited(r *rand.Rand, content []byte) []byte {
	b := bytes.Clone(content)
	for range 1 + r.IntN(5) {
		at := r.IntN(len(b) + 1)
		n := r.IntN(min(len(b)-at, 3000) + 1)
		switch r.IntN(6) {
		case 0: // insert
			b = append(b[:at:at], append(noise(r, r.IntN(300)), b[at:]...)...)
		case 1: // delete
			b = append(b[:at:at], b[at+n:]...)
		case 2: // change
			copy(b[at:at+n], noise(r, n))
		case 3: // move to the end
			b = append(append(b[:at:at], b[at+n:]...), b[at:at+n]...)
		case 4: // repeat
			b = append(b[:at+n:at+n], b[at:]...)
		default: // zeros
			clear(b[at : at+n])
		}
	}
	return b
}

// patched applies the patch from old to current with git, checks the files, reverts it and
// checks them again. It returns the patch.
func patched(t *testing.T, old, current map[string]string) string {
	t.Helper()
	blobs := temporary(t)
	var patch bytes.Buffer
	if err := WritePatch(t.Context(), &patch, blobs, changesOf(t, stateOf(t, blobs, old), stateOf(t, blobs, current))); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range old {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		args []string
		want map[string]string
	}{{nil, current}, {[]string{"-R"}, old}} {
		cmd := exec.Command("git", append([]string{"-C", dir, "apply"}, step.args...)...)
		cmd.Stdin = bytes.NewReader(patch.Bytes())
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git apply %q: %v\n%s", step.args, err, out)
		}
		for name, content := range step.want {
			if is, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(is) != content {
				t.Errorf("git apply %q: %s is wrong: %d bytes instead of %d, %v", step.args, name, len(is), len(content), err)
			}
		}
	}
	return patch.String()
}

func TestGitAppliesBinaryChangesInBothDirections(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	old, current := make(map[string]string), make(map[string]string)
	for i := range 60 {
		content := noise(r, r.IntN(10_000))
		switch i % 4 {
		case 1: // repeats itself
			content = bytes.Repeat(content[:min(len(content), 1+i)], 200)
		case 2:
			content = append(make([]byte, r.IntN(100_000)), content...)
		}
		name := fmt.Sprintf("f%d", i)
		old[name], current[name] = "\x00"+string(content), "\x00"+string(edited(r, content))
	}
	old["emptied"], current["filled"], old["filled"], current["emptied"] = "\x00\x01", "\x00\x01", "", ""
	patch := patched(t, old, current)
	if strings.Count(patch, "\ndelta ") < 60 {
		t.Errorf("only %d deltas", strings.Count(patch, "\ndelta "))
	}
}

func TestABinaryChangeIsAsSmallAsItsDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	content := "\x00" + string(noise(r, 100_000))
	for name, c := range map[string]struct {
		to   string
		most int
	}{
		"a byte in the middle": {content[:50_000] + "\x00" + content[50_001:], 2000},
		"bytes at many places": {strings.Join([]string{content[:9], content[10:30_000], content[30_900:70_000], content[70_001:]}, "!"), 3000},
		"a part moved":         {content[70_000:] + content[:70_000], 2000},
		"something before":     {strings.Repeat("new", 100) + content, 2000},
		"something at the end": {content + strings.Repeat("new", 100), 2000},
		"doubled":              {content + content, 2000},
		"shorter":              {content[:1000], 150_000},
		"what compresses well": {"\x00" + strings.Repeat("a", 100_000), 150_000},
		"nothing alike":        {"\x00" + string(noise(r, 100_000)), 300_000},
	} {
		patch := patched(t, map[string]string{"f": content}, map[string]string{"f": c.to})
		if len(patch) > c.most {
			t.Errorf("%s: the patch has %d bytes, more than %d", name, len(patch), c.most)
		}
	}
}

// applyDelta returns the target of a delta, as git makes it.
func applyDelta(base, delta []byte) ([]byte, error) {
	for range 2 {
		_, n := binary.Uvarint(delta)
		delta = delta[n:]
	}
	var out []byte
	for len(delta) > 0 {
		code := delta[0]
		delta = delta[1:]
		if code&0x80 == 0 {
			out, delta = append(out, delta[:code]...), delta[code:]
			continue
		}
		var v [7]byte
		for i := range v {
			if code&(1<<i) != 0 {
				v[i], delta = delta[0], delta[1:]
			}
		}
		off, n := int(binary.LittleEndian.Uint32(v[:])), int(v[4])|int(v[5])<<8|int(v[6])<<16
		if n == 0 {
			n = 0x10000
		}
		if off+n > len(base) {
			return nil, errors.New("a copy beyond the base")
		}
		out = append(out, base[off:off+n]...)
	}
	return out, nil
}

func FuzzDelta(f *testing.F) {
	long := strings.Repeat("0123456789abcdef", 9000)
	f.Add([]byte(long), []byte(long[5000:]+"x"+long[:70_000]))
	f.Add([]byte("a"), []byte("b"))
	f.Add(make([]byte, 200_000), make([]byte, 131_073))
	f.Fuzz(func(t *testing.T, base, target []byte) {
		d, err := findDelta(io.NewSectionReader(bytes.NewReader(base), 0, int64(len(base))), io.NewSectionReader(bytes.NewReader(target), 0, int64(len(target))))
		if err != nil || d == nil {
			if err != nil || len(base) > 0 && len(target) > 0 {
				t.Fatalf("no delta, %v", err)
			}
			return
		}
		var b bytes.Buffer
		if err := d.write(&b); err != nil {
			t.Fatal(err)
		}
		if out, err := applyDelta(base, b.Bytes()); err != nil || !bytes.Equal(out, target) {
			t.Errorf("the delta makes %d bytes instead of %d, %v", len(out), len(target), err)
		}
	})
}
