package testdocker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// WriteContext writes a context of the docker command into the configuration folder config, and
// returns the folder of the context's certificates.
func WriteContext(t testing.TB, config, name string, endpoint map[string]any) string {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	meta, err := json.Marshal(map[string]any{"Name": name, "Endpoints": map[string]any{"docker": endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(config, "contexts", "meta", key, "meta.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, meta, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(config, "contexts", "tls", key, "docker")
}

// CleanEnv hides this machine's engine settings from the test, and returns an empty folder for
// the configuration of the docker command.
func CleanEnv(t testing.TB) (config string) {
	t.Helper()
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(name, "")
	}
	config = t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	return config
}

// FreeAddress returns a TCP address of this machine on which nothing listens. Until the test
// ends, the system does not assign its port to sockets that ask for any free port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	// The socket is bound but does not listen. Another socket with this option can listen on
	// the address.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	bound, nerr := syscall.Getsockname(fd)
	if err := errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}
