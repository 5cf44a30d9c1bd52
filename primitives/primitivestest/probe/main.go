// Command probe is the program that the contract suite runs inside a sandbox: one static
// program that needs nothing of the sandbox's image, neither shell nor libc.
//
// Its arguments are a script: words, each with a fixed number of operands, executed one after
// the other.
//
//	probe out hello err oops exit 3
//	probe spawn setsid,quiet hang end out ready
//
// The words are listed in the tables of the other files. Process lists and
// terminals need Linux or macOS.
package main

import (
	"errors"
	"fmt"
	"os"
)

// script is the rest of the script.
type script struct {
	words []string
	held  []byte // see hold
}

// step is one word of the language: its number of operands and its action.
type step struct {
	operands int
	do       func(s *script, arg []string) error
}

func main() {
	restoreSignals()
	s := &script{words: os.Args[1:]}
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(99)
	}
}

func (s *script) run() error {
	steps := vocabulary()
	for len(s.words) > 0 {
		word := s.words[0]
		st, ok := steps[word]
		if !ok {
			return fmt.Errorf("unknown word %q", word)
		}
		if len(s.words) <= st.operands {
			return fmt.Errorf("%s needs %d operands", word, st.operands)
		}
		arg := s.words[1 : 1+st.operands]
		s.words = s.words[1+st.operands:]
		if err := st.do(s, arg); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}

// vocabulary returns all words.
func vocabulary() map[string]step {
	all := map[string]step{}
	for _, table := range []map[string]step{streamWords(), processWords(), fileWords(), terminalWords(), netWords()} {
		for word, st := range table {
			all[word] = st
		}
	}
	return all
}

// takeBlock removes the words up to the matching "end" from the script and
// returns them.
func (s *script) takeBlock() ([]string, error) {
	depth := 1
	for i, word := range s.words {
		switch word {
		case "spawn":
			depth++
		case "end":
			if depth--; depth == 0 {
				block := s.words[:i]
				s.words = s.words[i+1:]
				return block, nil
			}
		}
	}
	return nil, errors.New("no matching end")
}
