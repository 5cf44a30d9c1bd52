package local

import (
	"crypto/rand"
	"time"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// CollectOrphans does what the collector process of this program does when it starts.
func CollectOrphans(root string) {
	c := collection{host: proctree.Self(), since: time.Now()}
	c.collect(c.orphans(root), false)
	c.work.Wait()
}

// Orphan makes the owner of a sandbox a program that has died, and returns the name of a
// file that it was writing.
func Orphan(s *Sandbox) (temp string, err error) {
	s.st.Owner.Start = 1 // which is not when this program started
	return tempOf(s.st.Owner), writeJSON(s.st.file(stateFile), s.st)
}

// OwnTemp returns the name of a file that this program is writing.
func OwnTemp() string { return tempOf(proctree.Self()) }

func tempOf(writer proctree.Identity) string {
	return ".agentenv-" + writer.String() + "-" + rand.Text() + ".tmp"
}
