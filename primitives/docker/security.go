package docker

import (
	"bytes"
	_ "embed" // the profile
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// escapes returns the capabilities with which root in a container can leave it: by mounting, by
// loading code into the kernel, by opening files of the machine by handle, or through its devices.
func escapes() []string {
	return []string{"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "DAC_READ_SEARCH", "BPF", "PERFMON", "MAC_ADMIN", "MAC_OVERRIDE"}
}

func (c config) checkCapabilities() error {
	for i, name := range c.CapAdd {
		field := fmt.Sprintf("cap_add[%d]", i)
		short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		if short == "" || strings.Trim(short, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			return c.invalid(field, fmt.Sprintf("%q is no capability; give a name such as CHOWN", name))
		}
		if slices.Contains(escapes(), short) {
			return c.invalid(field, short+" would let the sandbox leave the container; use a machine of its own for what needs it")
		}
		if slices.Contains([]string{"MKNOD", "SETFCAP"}, short) && c.changesFolders() {
			return c.invalid(field, short+" would let the sandbox put devices or privileged programs into a folder of the machine; mount folders read-only beside it")
		}
	}
	return nil
}

// checkSeccomp refuses a value that is not the path of a profile, for example "unconfined".
func (c config) checkSeccomp() error {
	if c.Seccomp == "" {
		return nil
	}
	if !filepath.IsAbs(c.Seccomp) {
		return c.invalid("seccomp", fmt.Sprintf("%q is not absolute, and a sandbox is never unconfined; give the absolute path of a profile", c.Seccomp))
	}
	_, err := c.readProfile()
	return err
}

// maxProfile is the maximum size of a profile. The engine's own has 12 KB.
const maxProfile = 1 << 20

// seccompProfile returns the profile in one line, as the engine wants it, or "" for the engine's
// own.
func (c config) seccompProfile() (string, error) {
	switch {
	case c.Seccomp != "":
		return c.readProfile()
	case c.changesFolders():
		return withoutSetID()
	}
	return "", nil
}

func (c config) readProfile() (string, error) {
	info, err := os.Stat(c.Seccomp)
	if err != nil {
		return "", fmt.Errorf("seccomp: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxProfile {
		return "", c.invalid("seccomp", c.Seccomp+" is not a regular file of at most 1 MiB; give the path of a profile")
	}
	b, err := os.ReadFile(c.Seccomp)
	if err != nil {
		return "", fmt.Errorf("seccomp: %w", err)
	}
	var profile struct {
		DefaultAction string `json:"defaultAction"`
	}
	if err := json.Unmarshal(b, &profile); err != nil || profile.DefaultAction == "" {
		return "", c.invalid("seccomp", "the profile is not a JSON object with a defaultAction; correct it")
	}
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return "", c.invalid("seccomp", "the profile is not JSON; correct it")
	}
	return line.String(), nil
}

// A file in a mounted folder has the same owner and mode on the machine. A set-user-ID
// program that the container makes there gives another user of the machine the identity of
// the container's user, which may be root. A nosuid mount would help in the container only,
// where no-new-privileges holds anyway. So a filter of system calls refuses to set the bits,
// as systemd's RestrictSUIDSGID does.

// defaultProfile is the default seccomp profile of engines, default.json of
// github.com/moby/profiles/seccomp (Apache-2.0): an engine that gets a profile does not apply its
// default. That package builds on Linux only; a test compares the copy with it.
//
//go:embed seccomp_default.json
var defaultProfile []byte

type seccompProfile struct {
	DefaultAction string          `json:"defaultAction"`
	DefaultErrno  int             `json:"defaultErrnoRet"`
	ArchMap       json.RawMessage `json:"archMap"`
	Syscalls      []seccompRule   `json:"syscalls"`
}

type seccompRule struct {
	Names    []string        `json:"names"`
	Action   string          `json:"action"`
	Errno    *int            `json:"errnoRet,omitempty"`
	Args     []seccompArg    `json:"args,omitempty"`
	Includes json.RawMessage `json:"includes,omitempty"`
	Excludes json.RawMessage `json:"excludes,omitempty"`
}

type seccompArg struct {
	Index    int    `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

const (
	setID       = 0o6000               // S_ISUID and S_ISGID
	makesFile   = 0o100 | 0o20000000   // O_CREAT and O_TMPFILE's own bit: only then open has a mode
	errnoNoCall = 38                   // ENOSYS
	isZero      = "SCMP_CMP_MASKED_EQ" // of an argument: its bits in value are those of valueTwo
)

// without returns a rule that allows a call if an argument has none of the bits.
func without(index int, bits uint64, names ...string) seccompRule {
	return seccompRule{Names: names, Action: "SCMP_ACT_ALLOW", Args: []seccompArg{{Index: index, Value: bits, Op: isZero}}}
}

// withoutSetID returns the default profile without permission to set the set-user-ID and
// set-group-ID bits. A filter cannot read the mode of openat2, which is in memory, so openat2 fails
// with ENOSYS, as on an old kernel.
var withoutSetID = sync.OnceValues(func() (string, error) {
	var profile seccompProfile
	if err := json.Unmarshal(defaultProfile, &profile); err != nil {
		return "", err
	}
	noCall := errnoNoCall
	rules := []seccompRule{
		without(1, setID, "chmod", "fchmod", "creat", "mknod"),
		without(2, setID, "fchmodat", "fchmodat2", "mknodat", "open"), without(1, makesFile, "open"),
		without(3, setID, "openat"), without(2, makesFile, "openat"),
		{Names: []string{"openat2"}, Action: "SCMP_ACT_ERRNO", Errno: &noCall},
	}
	for i, rule := range profile.Syscalls {
		profile.Syscalls[i].Names = slices.DeleteFunc(rule.Names, func(name string) bool {
			return slices.ContainsFunc(rules, func(r seccompRule) bool { return slices.Contains(r.Names, name) })
		})
	}
	profile.Syscalls = append(profile.Syscalls, rules...)
	b, err := json.Marshal(profile)
	return string(b), err
})
