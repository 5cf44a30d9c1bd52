package query

import (
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Said collects what the agent said after its last tool call, or before it if it said nothing after it. The zero value
// is empty.
type Said struct {
	blocks  [][]byte
	index   map[string]int // of the blocks, by ID
	size    int            // of the blocks in bytes
	dropped int            // bytes of text over the limit
	over    bool           // a tool was called, or the agent got another message, since the agent said something
}

// MaxSaid limits the size of the blocks of a [Said], in bytes. Each counts blockSize more.
const (
	MaxSaid   = 16 << 20
	blockSize = 128
)

// Add adds an event of the main conversation.
func (s *Said) Add(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeAgentMessage:
		if c, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev); err == nil {
			s.say(c)
		}
	case runnerscripts.TypeToolCall, runnerscripts.TypeUserMessage:
		s.over = true
	}
}

// say adds a chunk to its block.
func (s *Said) say(c runnerscripts.ContentChunk) {
	text := c.Content.Text
	if s.over && text != "" {
		*s = Said{}
	}
	i, known := s.index[c.BlockID]
	if known && c.Snapshot {
		s.size -= len(s.blocks[i])
		s.blocks[i] = nil
	}
	size := len(text)
	if !known {
		size += blockSize + len(c.BlockID)
	}
	if s.size+size > MaxSaid {
		s.dropped += len(text)
		return
	}
	s.size += size
	if !known {
		if s.index == nil {
			s.index = make(map[string]int)
		}
		i = len(s.blocks)
		s.index[c.BlockID] = i
		s.blocks = append(s.blocks, nil)
	}
	s.blocks[i] = append(s.blocks[i], text...)
}

// Text returns the text of all blocks.
func (s *Said) Text() string {
	texts := s.texts()
	if s.dropped > 0 {
		texts = append(texts, fmt.Sprintf("[%d bytes were left out]", s.dropped))
	}
	return strings.Join(texts, "\n\n")
}

// texts returns the blocks that are not blank.
func (s *Said) texts() (texts []string) {
	for _, b := range s.blocks {
		if text := strings.TrimSpace(string(b)); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}
