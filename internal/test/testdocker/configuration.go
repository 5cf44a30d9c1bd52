package testdocker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
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
