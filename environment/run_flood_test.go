//go:build !race

package environment

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
)

func TestFloodOfTextTakesNoMoreMemoryThanAResultMayHave(t *testing.T) {
	env := withQuery(t, started+`awk 'BEGIN { for (text = "x"; length(text) < 100000;) text = text text
		for (i = 0; i < 1000; i++) printf "{\"type\":\"agent_message_chunk\",\"payload\":{\"blockId\":\"%d\",\"content\":{\"type\":\"text\",\"text\":\"%s\"}}}\n", i % 7, text }'
		`+completed+`cat`)
	testmemory.AtMost(t, 6*query.MaxSaid, func() {
		res, err := env.Run(t.Context(), "x")
		if err != nil || len(res.Text) < query.MaxSaid*9/10 || !strings.HasSuffix(res.Text, "were left out]") {
			t.Errorf("a text of %d bytes that ends with %q, %v", len(res.Text), tail.Of(res.Text), err)
		}
	})
}
