package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

// marker is a secret that must not appear in any file or error.
const marker = "sk-MARKER-0123456789"

// home gives the test a state folder and a configuration folder of its own.
func home(t *testing.T) (state, config string) {
	t.Helper()
	dir := t.TempDir()
	state, config = filepath.Join(dir, "state"), filepath.Join(dir, "config")
	t.Setenv("HOME", dir)
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("XDG_CONFIG_HOME", config)
	for _, name := range []string{keyVariable, keyFileVariable} {
		t.Setenv(name, "") // registers the restore of the old value
		os.Unsetenv(name)
	}
	return state, config
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// withKey returns a store that has a key.
func withKey(t *testing.T) *Store {
	t.Helper()
	home(t)
	s := open(t)
	if path, err := s.Init(t.Context()); err != nil || path == "" {
		t.Fatalf("made %q, %v", path, err)
	}
	return s
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return key.String()
}

func TestWhatIsSetIsListedReadAndRemoved(t *testing.T) {
	s := withKey(t)
	for name, secret := range map[string]string{"b.x_-9": marker, "a": "<&> \u2028 é", "c": strings.Repeat("x", maxSecret)} {
		if err := s.Set(t.Context(), name, secret); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(name); got != secret || err != nil {
			t.Errorf("%s: %.40q, %v", name, got, err)
		}
	}
	if err := s.Set(t.Context(), "a", "new"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get("a"); got != "new" || err != nil {
		t.Errorf("replaced: %q, %v", got, err)
	}
	list, err := s.List()
	if err != nil || len(list) != 3 || list[0].Name != "a" || list[1].Name != "b.x_-9" || list[0].Changed.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"get": second(s.Get("a")), "remove": s.Remove(t.Context(), "a")} {
		var where *Error
		if !errors.Is(err, ErrNotFound) || !errors.As(err, &where) || where.Name != "a" || where.Op != what {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}

func second(_ string, err error) error { return err }

func TestNamesAndSecretsThatAreRefused(t *testing.T) {
	s := withKey(t)
	for _, c := range []struct{ name, secret, want string }{
		{"", marker, "the name is empty"},
		{strings.Repeat("n", 64), marker, "more than 63 characters"},
		{"a/b", marker, "other characters"},
		{"é", marker, "other characters"},
		{marker + strings.Repeat("n", 64), "x", "more than 63 characters"},
		{"a", "", "the secret is empty"},
		{"a", marker + "\n", "control character"},
		{"a", "\x00" + marker, "control character"},
		{"a", marker + "\u0085x", "control character"},
		{"a", marker + "\xff", "not UTF-8"},
		{"a", " " + marker, "white space"},
		{"a", marker + strings.Repeat("x", maxSecret), "more than 64 KiB"},
	} {
		err := s.Set(t.Context(), c.name, c.secret)
		if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), marker) {
			t.Errorf("%.20q, want %q: %v", c.name, c.want, err)
		}
	}
	for name, err := range map[string]error{"get": second(s.Get("a/b")), "remove": s.Remove(t.Context(), "a/b")} {
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) > 0 {
		t.Errorf("stored %+v, %v", list, err)
	}
}

func TestWithoutAKeyNothingIsStored(t *testing.T) {
	state, config := home(t)
	s := open(t)
	if list, err := s.List(); err != nil || len(list) > 0 {
		t.Errorf("an empty store needs no key: %+v, %v", list, err)
	}
	private := func(name, content string, mode fs.FileMode) string {
		path := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := newKey(t)
	for _, c := range []struct{ variable, value, want string }{
		{"", "", "--init"},
		{keyVariable, "", "is empty"},
		{keyVariable, marker, "is not one age identity"},
		{keyVariable, strings.Replace(good, "1", "1"+marker, 1), "is not one age identity"},
		{keyVariable, good + "\n" + newKey(t), "is not one age identity"},
		{keyFileVariable, "", "no such file"},
		{keyFileVariable, "/nonexistent/key", "no such file"},
		{keyFileVariable, t.TempDir(), "director"},
		{keyFileVariable, private("open", good, 0o640), "not yours alone"},
		{keyFileVariable, private("comments", "# "+marker+"\n\n", 0o600), "is empty"},
		{keyFileVariable, private("wrong", marker, 0o600), "is not one age identity"},
		{keyFileVariable, private("large", strings.Repeat("#", maxKeyFile+1), 0o600), "larger than"},
	} {
		t.Run(c.variable+" "+c.want, func(t *testing.T) {
			if c.variable != "" {
				t.Setenv(c.variable, c.value)
			}
			err := s.Set(t.Context(), "a", marker)
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), marker) || strings.Contains(err.Error(), good) {
				t.Errorf("want %q: %v", c.want, err)
			}
			if c.variable == "" {
				return
			}
			if path, err := s.Init(t.Context()); !errors.Is(err, ErrKey) || path != "" {
				t.Errorf("a key was made beside a wrong one: %q, %v", path, err)
			}
		})
	}
	if _, err := os.Lstat(config); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a folder of the configuration: %v", err)
	}
	nowhere(t, state, marker)
	if _, err := s.root.Lstat(storeFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a store: %v", err)
	}
}

// nowhere checks that no file below dir contains text, and that all files are private.
func nowhere(t *testing.T, dir, text string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("%s holds %s", path, text)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

func TestSecretsAndNamesAreInNoFile(t *testing.T) {
	s := withKey(t)
	if err := errors.Join(s.Set(t.Context(), "some-name", marker), s.Set(t.Context(), "other-name", marker)); err != nil {
		t.Fatal(err)
	}
	state := os.Getenv("XDG_STATE_HOME")
	nowhere(t, state, marker)
	nowhere(t, state, "some-name")
	if _, err := s.root.Lstat(partFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the part is left: %v", err)
	}
}

func TestAKeyIsFoundWhereItIs(t *testing.T) {
	_, config := home(t)
	s := open(t)
	key := newKey(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("# created: today\n"+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("variable", func(t *testing.T) {
		t.Setenv(keyVariable, key)
		t.Setenv(keyFileVariable, "/nonexistent") // must be ignored
		if err := s.Set(t.Context(), "a", marker); err != nil {
			t.Error(err)
		}
	})
	t.Run("file", func(t *testing.T) {
		t.Setenv(keyFileVariable, file)
		if got, err := s.Get("a"); got != marker || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if path, err := s.Init(t.Context()); path != "" || err != nil {
			t.Errorf("made %q, %v", path, err)
		}
	})
	if path, err := s.Init(t.Context()); !errors.Is(err, ErrKey) || path != "" {
		t.Errorf("a key was made for the store of another: %q, %v", path, err)
	}
	if err := s.root.Remove(storeFile); err != nil {
		t.Fatal(err)
	}
	path, err := s.Init(t.Context())
	if err != nil || path != filepath.Join(config, "agentenv", "credentials.key") {
		t.Errorf("made %q, %v", path, err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the key: %v, %v", left, err)
	}
	nowhere(t, config, marker) // of mode 0600
	if err := s.Set(t.Context(), "a", marker); err != nil {
		t.Error(err)
	}
	if path, err := s.Init(t.Context()); path != "" || err != nil {
		t.Errorf("made %q again, %v", path, err)
	}
}

func TestAStoreThatCannotBeReadStaysAsItIs(t *testing.T) {
	s := withKey(t)
	if err := s.Set(t.Context(), "a", marker); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.path())
	if err != nil {
		t.Fatal(err)
	}
	key, err := findKey()
	if err != nil {
		t.Fatal(err)
	}
	encrypted := func(plain string) []byte {
		var b bytes.Buffer
		w, err := age.Encrypt(&b, key.Recipient())
		if err == nil {
			_, err = w.Write([]byte(plain))
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		key  string
		data []byte
		want error
	}{
		"another key":      {newKey(t), whole, ErrKey},
		"empty":            {"", nil, ErrDamaged},
		"plain text":       {"", []byte(`{"format":1,"credentials":{"a":{"secret":"` + marker + `"}}}`), ErrDamaged},
		"cut":              {"", whole[:len(whole)-1], ErrDamaged},
		"flipped":          {"", flipped, ErrDamaged},
		"no JSON":          {"", encrypted(marker), ErrDamaged},
		"another format":   {"", encrypted(`{"format":2}`), ErrDamaged},
		"a wrong type":     {"", encrypted(`{"format":1,"credentials":{"a":{"secret":["` + marker + `"]}}}`), ErrDamaged},
		"a wrong time":     {"", encrypted(`{"format":1,"credentials":{"a":{"secret":"x","changed":"` + marker + `"}}}`), ErrDamaged},
		"a refused secret": {"", encrypted(`{"format":1,"credentials":{"a":{"secret":"` + marker + `\n"}}}`), ErrDamaged},
		"a refused name":   {"", encrypted(`{"format":1,"credentials":{"` + marker + `/":{"secret":"x"}}}`), ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			if c.key != "" {
				t.Setenv(keyVariable, c.key)
			}
			if err := os.WriteFile(s.path(), c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, listErr := s.List()
			for op, err := range map[string]error{
				"list": listErr, "get": second(s.Get("a")), "set": s.Set(t.Context(), "b", marker), "remove": s.Remove(t.Context(), "a"),
			} {
				var where *Error
				if !errors.Is(err, c.want) || !errors.As(err, &where) || where.Op != op || strings.Contains(err.Error(), marker) {
					t.Errorf("%s: want %v: %v", op, c.want, err)
				}
			}
			if after, err := os.ReadFile(s.path()); err != nil || !bytes.Equal(after, c.data) {
				t.Errorf("it was changed, %v", err)
			}
		})
	}
	if err := errors.Join(os.WriteFile(s.path(), whole, 0o600), os.Chmod(s.path(), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("a"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("others can read it: %v", err)
	}
}

func TestTheStoreIsBounded(t *testing.T) {
	s := withKey(t)
	large := strings.Repeat("x", maxSecret)
	c := contents{}
	for i := range maxStore/maxSecret - 1 {
		c[fmt.Sprint(i)] = stored{Secret: large}
	}
	if err := s.write(c); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "more", large); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if got, err := s.Get("0"); got != large || err != nil {
		t.Errorf("the old ones: %d bytes, %v", len(got), err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(contents{"a": {Secret: marker}}.encode())
	f.Add([]byte(`{"format":1,"credentials":null}`))
	f.Add([]byte(`{"format":1,"credentials":{"a/b":{"secret":"\n"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, ok := decode(data)
		if !ok {
			return
		}
		for name, stored := range c {
			if err := errors.Join(checkName(name), checkSecret(stored.Secret)); err != nil {
				t.Error(err)
			}
		}
		again, ok := decode(c.encode())
		if !ok || len(again) != len(c) {
			t.Errorf("%q does not come back", data)
		}
		for name, stored := range c {
			if again[name].Secret != stored.Secret {
				t.Errorf("%s does not come back", name)
			}
		}
	})
}
