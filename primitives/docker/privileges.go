package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// escapes are the capabilities with which a root in a container can leave it: by
// mounting, by loading code into the kernel, by opening files of the machine by
// their number, by its devices.
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

// checkSeccomp refuses what is no profile, for example "unconfined".
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

// maxProfile is the longest profile. The engine's own has 12 KB.
const maxProfile = 1 << 20

// seccompProfile returns the profile as the engine wants it, in one line; empty for the
// engine's own.
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
