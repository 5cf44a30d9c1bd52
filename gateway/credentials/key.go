package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

const (
	keyVariable     = "AGENTENV_CREDENTIALS_KEY"
	keyFileVariable = "AGENTENV_CREDENTIALS_KEY_FILE"
	maxKeyFile      = 64 << 10 // bytes
)

// errNoKeyFile means that the user's configuration folder has no key file.
var errNoKeyFile = fmt.Errorf("%w", ErrKey)

// findKey returns the key. Every error is [ErrKey].
func findKey() (*age.X25519Identity, error) {
	if text, ok := os.LookupEnv(keyVariable); ok {
		return parseKey(keyVariable, text)
	}
	path, named := os.LookupEnv(keyFileVariable)
	if !named {
		var err error
		if path, err = defaultKeyFile(); err != nil {
			return nil, err
		}
	}
	data, err := statedir.ReadPrivate(path, maxKeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return nil, fmt.Errorf("%w: %s does not exist; make it with 'envctl credentials set --init', or set %s", errNoKeyFile, path, keyVariable)
	case err != nil && named:
		return nil, fmt.Errorf("%w: %s: %w", ErrKey, keyFileVariable, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return parseKey(path, string(data))
}

func defaultKeyFile() (string, error) {
	config, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w; set %s", ErrKey, err, keyVariable)
	}
	return filepath.Join(config, "agentenv", "credentials.key"), nil
}

// parseKey parses the output of age-keygen: one identity and comments. It does not wrap the
// errors of package age, which quote parts of the key.
func parseKey(source, text string) (*age.X25519Identity, error) {
	var key *age.X25519Identity
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		one, err := age.ParseX25519Identity(line)
		if err != nil || key != nil {
			return nil, fmt.Errorf("%w: %s is not one age identity; give one as age-keygen makes it (AGE-SECRET-KEY-1...)", ErrKey, source)
		}
		key = one
	}
	if key == nil {
		return nil, fmt.Errorf("%w: %s is empty; give an age identity as age-keygen makes it (AGE-SECRET-KEY-1...)", ErrKey, source)
	}
	return key, nil
}

// makeKey atomically creates the key file in the user's configuration folder. It never replaces
// an existing file.
func makeKey() (path string, err error) {
	if path, err = defaultKeyFile(); err != nil {
		return "", err
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	part, err := os.CreateTemp(dir, "credentials.key.*") // of mode 0600
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.Remove(part.Name())) }()
	_, err = fmt.Fprintf(part, "# created: %s\n# public key: %s\n%s\n", time.Now().UTC().Format(time.RFC3339), key.Recipient(), key)
	if err == nil {
		err = part.Sync()
	}
	if err = errors.Join(err, part.Close()); err != nil {
		return "", err
	}
	return path, os.Link(part.Name(), path)
}
