// Package proctree finds processes that belong together and signals them. It never signals a
// process that has reused a PID.
package proctree

import (
	"fmt"
	"strconv"
	"strings"
)

// Identity identifies one process forever: its PID together with its start time. The zero value
// identifies none.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot; zero if the system does not report it
}

// String returns the identity in the form that ParseIdentity reads.
func (i Identity) String() string {
	return strconv.Itoa(i.PID) + "." + strconv.FormatUint(i.Start, 36)
}

// ParseIdentity parses the form that String returns.
func ParseIdentity(s string) (Identity, error) {
	pid, start, _ := strings.Cut(s, ".")
	p, err := strconv.Atoi(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("process identity %q: %w", s, err)
	}
	t, err := strconv.ParseUint(start, 36, 64)
	if err != nil {
		return Identity{}, fmt.Errorf("process identity %q: %w", s, err)
	}
	return Identity{PID: p, Start: t}, nil
}

// Proc is one process at the time of the snapshot.
type Proc struct {
	Identity
	PPID, PGID, SID int
	Zombie, Stopped bool
	Name            string // without arguments
	hasMemory       bool   // neither a zombie nor a kernel thread
}

// Descendants returns the processes in procs that descend from one of the roots, including the
// roots.
func Descendants(procs []Proc, root func(Proc) bool) map[Identity]Proc {
	children := make(map[int][]Proc, len(procs))
	found := make(map[Identity]Proc)
	var todo []Proc
	for _, p := range procs {
		children[p.PPID] = append(children[p.PPID], p)
		if root(p) {
			found[p.Identity] = p
			todo = append(todo, p)
		}
	}
	for len(todo) > 0 {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range children[last.PID] {
			if _, seen := found[c.Identity]; !seen {
				found[c.Identity] = c
				todo = append(todo, c)
			}
		}
	}
	return found
}
