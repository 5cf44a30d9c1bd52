package local

import (
	"crypto/rand"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// CollectOrphans does what the collector process of this program does when it starts.
func CollectOrphans(root string) {
	c := collection{host: proctree.Self(), since: time.Now()}
	c.collect(c.orphans(root), false)
	c.work.Wait()
}

// Orphan replaces the owner of a sandbox by a program that has died, and returns the name of a file
// that the dead program was writing.
func Orphan(s *Sandbox) (temp string, err error) {
	s.st.Owner.Start = 1 // not the start time of this program
	return tempOf(s.st.Owner), writeJSON(s.st.file(stateFile), s.st)
}

// OwnTemp returns the name of a file that this program is writing.
func OwnTemp() string { return tempOf(proctree.Self()) }

func tempOf(writer proctree.Identity) string {
	return ".agentenv-" + writer.String() + "-" + rand.Text() + ".tmp"
}

// AdoptOrphans makes this program the parent of the orphans among its descendants.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
