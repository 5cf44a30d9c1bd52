// Package servertoken finds the token of a server: in AGENTENV_TOKEN, or in the file that a server of this user leaves on this
// machine for its address.
package servertoken

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// Variable is the environment variable with the token.
const Variable = "AGENTENV_TOKEN"

const (
	// folder is the folder of the state folder.
	folder = "servers"
	// Max limits a token, in bytes.
	Max = 4 << 10
)

// fileOf returns the name of the file for the server at an address.
func fileOf(url string) string {
	return strings.NewReplacer("://", "-", "/", "-").Replace(strings.TrimSuffix(url, "/"))
}

// File returns the path of the file with the token for the server at exactly this address; empty if there is none.
func File(url string) (string, error) {
	state, err := statedir.Path()
	if err != nil {
		return "", err
	}
	name := filepath.Join(state, folder, fileOf(url))
	switch _, err := os.Stat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	}
	return name, nil
}

// FromEnv returns the token in AGENTENV_TOKEN; empty if that is not set. An empty one is fs.ErrInvalid: a secret that is missing
// must not become the rights of this user.
func FromEnv() (string, error) {
	token, set := os.LookupEnv(Variable)
	if set && token == "" {
		return "", fmt.Errorf("%w: %s is set, but empty, perhaps from a variable that is not set; set it to a token, or unset it", fs.ErrInvalid, Variable)
	}
	return token, nil
}

// Find returns the token for the server at exactly this address; empty if there is none. The errors are those of [FromEnv], and of
// the files.
func Find(url string) (string, error) {
	if token, err := FromEnv(); token != "" || err != nil {
		return token, err
	}
	state, err := statedir.Path()
	if err != nil {
		return "", err
	}
	data, err := statedir.ReadPrivate(filepath.Join(state, folder, fileOf(url)), Max)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// New makes a token for the server at an address, which Find finds until remove is called. Only one server has the address, so
// a file that is there is of an earlier one.
func New(url string) (token string, remove func() error, err error) {
	root, err := statedir.Open(folder)
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name := fileOf(url)
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	token = rand.Text()
	if err := root.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
		return "", nil, err
	}
	file := filepath.Join(root.Name(), name)
	return token, func() error { return os.Remove(file) }, nil
}
