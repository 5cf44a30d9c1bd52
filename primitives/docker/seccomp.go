package docker

import (
	_ "embed" // the profile
	"encoding/json"
	"slices"
	"sync"
)

// A file in a mounted folder has the same owner and mode on the machine. A set-user-ID
// program that the container makes there gives another user of the machine the identity of
// the container's user, which may be root. A nosuid mount would help in the container only,
// where no-new-privileges holds anyway. So a filter of system calls refuses to set the bits,
// as systemd's RestrictSUIDSGID does.

// defaultProfile is what engines filter system calls with by default, of version 0.2.4 of
// github.com/moby/profiles/seccomp (Apache-2.0): an engine that gets a profile has no
// default beside it. The package itself builds on Linux only.
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

// without allows a call if none of the bits is in one of its arguments.
func without(index int, bits uint64, names ...string) seccompRule {
	return seccompRule{Names: names, Action: "SCMP_ACT_ALLOW", Args: []seccompArg{{Index: index, Value: bits, Op: isZero}}}
}

// withoutSetID is the default profile without the set-user-ID and set-group-ID bits. A filter
// cannot read the mode of openat2, which is in memory: programs find no such call, as on an
// old kernel.
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
