package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/credentials"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Credential says where this machine stores the key of a model API. Exactly one of Env, File,
// Command and Store must be set. The key itself is never in a configuration or a sandbox.
type Credential struct {
	// Env names a variable of this program's environment.
	Env string `json:"env,omitempty"`
	// File is the path of a file that contains only the key and that only its owner can read.
	File string `json:"file,omitempty"`
	// Command prints the key, for example ["pass", "show", "anthropic"]. It may take 30
	// seconds.
	Command []string `json:"command,omitempty"`
	// Store names a secret of the encrypted store, see package credentials.
	Store string `json:"store,omitempty"`
	// API is the kind of API: anthropic, openai or gemini. Empty means the name of the
	// credential.
	API runnerscripts.ModelAPI `json:"api,omitempty"`
	// URL is the base address of the API in the form that the agents' own variables use:
	// "https://api.anthropic.com", "https://api.openai.com/v1". Empty means the address of the
	// API's vendor.
	URL string `json:"url,omitempty"`
}

const (
	maxKey         = 64 << 10 // bytes
	commandTimeout = 30 * time.Second
)

// KeySource says where this machine stores a key, as [Credential] does. The zero value is none.
type KeySource struct {
	// Env names a variable of this program's environment.
	Env string `json:"env,omitempty"`
	// File is the path of a file that contains only the key and that only its owner can read.
	File string `json:"file,omitempty"`
	// Command prints the key. It may take 30 seconds.
	Command []string `json:"command,omitempty"`
	// Store names a secret of the encrypted store, see package credentials.
	Store string `json:"store,omitempty"`
}

// IsZero reports whether no source is set.
func (s KeySource) IsZero() bool { return s.count() == 0 }

func (s KeySource) count() int {
	n := 0
	for _, given := range []bool{s.Env != "", s.File != "", len(s.Command) > 0, s.Store != ""} {
		if given {
			n++
		}
	}
	return n
}

// check returns an error unless exactly one source is set.
func (s KeySource) check(example string) error {
	if n := s.count(); n != 1 {
		return fmt.Errorf("it has %d sources; give one of env, file, command and store, for example {env: %s}", n, example)
	}
	return nil
}

// Check returns the errors of [Credential.Upstream] that do not depend on the key.
func (c Credential) Check(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%w: credentials: the name %q has other characters than letters, digits, '_', '.' and '-'", ErrConfig, name)
	}
	if err := c.source().check("ANTHROPIC_API_KEY"); err != nil {
		return fmt.Errorf("%w: credentials.%s: %w", ErrConfig, name, err)
	}
	_, err := Upstream{API: c.api(name), URL: c.URL}.baseURL(name)
	return err
}

func (c Credential) source() KeySource {
	return KeySource{Env: c.Env, File: c.File, Command: c.Command, Store: c.Store}
}

func (c Credential) api(name string) runnerscripts.ModelAPI {
	return cmp.Or(c.API, runnerscripts.ModelAPI(name))
}

// Upstream reads the key. Errors are [ErrConfig]; they name the source and never contain its
// content.
func (c Credential) Upstream(ctx context.Context, name string) (Upstream, error) {
	if err := c.Check(name); err != nil {
		return Upstream{}, err
	}
	key, err := c.source().key(ctx)
	if err != nil {
		return Upstream{}, fmt.Errorf("%w: credentials.%s: %w", ErrConfig, name, err)
	}
	return Upstream{API: c.api(name), URL: c.URL, Key: key}, nil
}

// key reads the key. Errors never contain it.
func (s KeySource) key(ctx context.Context) (string, error) {
	key, err := s.read(ctx)
	key = strings.TrimSpace(key)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("its source has an empty value; put the key there")
	case !isKey(key):
		return "", errors.New("its source has more than a key, such as a second line; leave only the key there")
	}
	return key, nil
}

// isKey reports whether text is valid as a key in a header.
func isKey(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// read returns the content of the source.
func (s KeySource) read(ctx context.Context) (string, error) {
	switch {
	case s.Store != "":
		store, err := credentials.Open()
		if err != nil {
			return "", err
		}
		key, err := store.Get(s.Store)
		return key, errors.Join(err, store.Close())
	case s.Env != "":
		value, ok := os.LookupEnv(s.Env)
		if !ok {
			return "", fmt.Errorf("the variable %s is not set on this machine", s.Env)
		}
		return value, nil
	case s.File != "":
		data, err := statedir.ReadPrivate(s.File, maxKey)
		if err != nil {
			return "", fmt.Errorf("its file: %w", err)
		}
		return string(data), nil
	}
	return s.run(ctx)
}

// run returns the output of the command.
func (s KeySource) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var out printed
	var said tail.Buffer
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.WaitDelay = time.Second // a child of the command may hold the output open
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	switch _, failed := errors.AsType[*exec.ExitError](err); {
	case out.tooMuch:
		err = fmt.Errorf("it prints more than %d KiB", maxKey>>10)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case failed:
		err = fmt.Errorf("%w: %.200s", err, lines[len(lines)-1])
	}
	if err != nil {
		return "", fmt.Errorf("its command %s: %w", s.Command[0], err)
	}
	return out.String(), nil
}

// printed collects the output of a command. It closes the pipe when the output exceeds maxKey.
type printed struct {
	strings.Builder
	tooMuch bool
}

func (p *printed) Write(data []byte) (int, error) {
	if p.Len()+len(data) > maxKey {
		p.tooMuch = true
		return 0, io.ErrShortWrite
	}
	return p.Builder.Write(data)
}
