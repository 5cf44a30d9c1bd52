package session

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestPruningKeepsAnAttachmentThatIsAlsoAFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, create := lastingConfig(10)
		s, err := open(t.Context(), cfg, create)
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, s)
		file := strings.Repeat("         3", changingSize/10) // that of the third minute
		turn, err := s.Prompt(t.Context(), "long", runnerscripts.Attachment{Data: []byte(file)})
		if err != nil {
			t.Fatal(err)
		}
		complete(t, turn)
		checkPruned(t, s, 2, 3, 4, 5, 6, 7)
		c, err := Reduce(turn.Events(t.Context()))
		if err != nil || len(c.Queries[0].Attachments) != 1 {
			t.Fatalf("%+v, %v", c.Queries, err)
		}
		attached := c.Queries[0].Attachments[0]
		if got, err := s.readBlobs(t.Context(), store.Digest(attached.Digest)); err != nil || string(got) != file || attached.Size != changingSize {
			t.Errorf("%+v: %d bytes, %v", attached, len(got), err)
		}
	})
}
