package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// FuzzParseConfig checks that a configuration is an error or passes its own check again.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("sandbox: {type: docker, image: x, memory: 2GiB}\nagent: {name: claude}\n"))
	f.Add([]byte(`{"sandbox":"local","workspace":{"files":[{"path":"a","content":"b"}]},"profile":{"memory":"x"}}`))
	f.Add([]byte("a: &a [x, x]\nb: [*a, *a]\n---\nagent: {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		asJSON, err := configfile.ToJSON("", data)
		if err != nil {
			return
		}
		if rest, profile := cutProfile(asJSON); profile != "" || !bytes.Equal(rest, asJSON) {
			return // it names a file of this machine
		}
		cfg, err := ParseConfig(data)
		if err != nil {
			return
		}
		if err := cfg.checkValues(); err != nil {
			t.Fatalf("%q was parsed, and is %v", data, err)
		}
	})
}

// FuzzProfileFolder checks that the files of a profile's folder are an error or a profile that
// passes the check of the scripts.
func FuzzProfileFolder(f *testing.F) {
	f.Add("---\ndescription: d\ntools: [a, b]\n---\nbody", "memory", "{}")
	f.Add("---\ntools: a, b\n---", "", `{"a":{"command":"x"}}`)
	f.Add("---\r\n", "\x00", "[")
	f.Fuzz(func(t *testing.T, agent, memory, servers string) {
		dir := t.TempDir()
		for name, content := range map[string]string{"agents/a.md": agent, "commands/c.md": agent, "skills/s/SKILL.md": agent, "AGENTS.md": memory, ".mcp.json": servers} {
			name = filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := LoadProfile(dir)
		if err != nil {
			return
		}
		if err := p.Check(); err != nil {
			t.Errorf("the profile was loaded, and is %v", err)
		}
	})
}

// FuzzRecord checks what a host takes from the files in which a sandbox describes itself. A host
// without a record of the sandbox takes the SessionID and the IgnoreChanges; a host with a
// record uses only its own record.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"session_id":"s","ignore_changes":["a/**"],"agent":{"name":"script","command":["sh"]}}`), []byte("tar"))
	f.Add([]byte(`{"session_id":"../s"}`), []byte{})
	f.Add([]byte(`{"session_id":"mine","ignore_changes":["["]}`), make([]byte, 1024))
	f.Setenv("XDG_STATE_HOME", f.TempDir())
	p, err := local.New(f.Context(), local.Config{Root: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_, err := p.Terminate(context.WithoutCancel(f.Context()))
		if err = errors.Join(err, p.Close()); err != nil {
			f.Error(err)
		}
	})
	const remembered = "remembered" // the type of sandboxes that this host has a record of
	sum := sha256.Sum256([]byte("another"))
	mine := madeRecord{note: note{SessionID: "mine"}, Agent: Agent{Name: "script"}, Baseline: hex.EncodeToString(sum[:])}
	made, err := json.Marshal(mine)
	if err == nil {
		err = kept.NewLog(kept.Record{Type: remembered, ID: p.ID()}).Begin(func(r *kept.Record) { r.Made = made })
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, record, began []byte) {
		for name, content := range map[string][]byte{noteFile: record, baselineFile: began} {
			if err := p.WriteFile(t.Context(), path.Join(p.Paths().App, name), bytes.NewReader(content), private()); err != nil {
				t.Fatal(err)
			}
		}
		for _, typ := range []string{"local", remembered} {
			var own origin
			cfg, err := readRecord(t.Context(), p, Config{Sandbox: Sandbox{Type: typ}}, &own)
			if err != nil {
				continue
			}
			known := typ == remembered && cfg.SessionID == mine.SessionID
			if known != (own.unknown == nil) || known != (cfg.Agent.Name == "script") {
				t.Errorf("%s: the session %q of agent %q: %v", typ, cfg.SessionID, cfg.Agent.Name, own.unknown)
			}
			if !sessionPattern.MatchString(cfg.SessionID) || !known && !reflect.DeepEqual(cfg, Config{
				Sandbox: cfg.Sandbox, SessionID: cfg.SessionID, IgnoreChanges: cfg.IgnoreChanges,
			}) {
				t.Errorf("%s: the sandbox decides on %+v", typ, cfg)
			}
			var base baseline
			if err := base.readFrom(t.Context(), p, own); err == nil {
				t.Error("the baseline of another sandbox is believed")
			}
			if err := base.close(); err != nil {
				t.Error(err)
			}
		}
	})
}
