package permission

import (
	"path"
	"slices"
	"strings"
)

// word is a word of a command. Its text is not known if the shell makes it, from a variable for
// example; then it may stand for any number of words.
type word struct {
	text  string
	known bool
	glob  string // the pattern of file names that the shell replaces; empty for none
}

func words(text string) []string { return strings.Fields(text) }

// tokens returns the parts of a word that may be a command, a path or a host by themselves.
func (w word) tokens() []string {
	return append([]string{w.text}, strings.FieldsFunc(w.text, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r > 127, strings.ContainsRune("_-./*", r):
			return false
		}
		return true
	})...)
}

// strictness says how an unknown word matches.
type strictness int

const (
	certain  strictness = iota // it matches the pattern * only
	possible                   // it may be any number of any words
)

// matchWords reports whether a command matches the words of a pattern.
func matchWords(pattern []string, cmd []word, how strictness) bool {
	// ends[j] says whether the pattern up to here matches the first j words.
	ends := make([]bool, len(cmd)+1)
	ends[0] = true
	for j, w := range cmd {
		ends[j+1] = ends[j] && how == possible && !w.known
	}
	for _, p := range pattern {
		next := make([]bool, len(cmd)+1)
		for j := range next {
			switch {
			case p == "*":
				next[j] = ends[j] || j > 0 && next[j-1]
			case j == 0:
			case cmd[j-1].known:
				next[j] = ends[j-1] && glob(p, cmd[j-1].text)
			case how == possible:
				next[j] = ends[j] || ends[j-1] || next[j-1]
			}
		}
		ends = next
	}
	return ends[len(cmd)]
}

// restrictsCommand says whether a pattern of a deny or ask rule matches a command. It is maybe for a
// command that resembles the pattern.
func restrictsCommand(pattern string, cmd []word) certainty {
	list := words(pattern)
	for _, c := range [][]word{cmd, baseOf(cmd)} {
		if matchWords(list, c, certain) {
			return yes
		}
	}
	base := baseOf(cmd)
	if matchWords(list, base, possible) || resembles(list, cmd) {
		return maybe
	}
	if len(base) > 0 && base[0].known { // the same program for some file systems
		base = append([]word{{text: strings.ToLower(base[0].text), known: true}}, base[1:]...)
		if matchWords(list, base, possible) {
			return maybe
		}
	}
	return no
}

// resembles reports whether a command mentions the words of a pattern in their order, wherever, and
// its options in another form. After the name of the program an unknown word may be any of them.
func resembles(pattern []string, cmd []word) bool {
	var tokens []string
	unknown := false
	for _, w := range cmd {
		if !w.known {
			unknown = true
			continue
		}
		for _, t := range w.tokens()[1:] {
			tokens = append(tokens, t)
			if base := path.Base(t); base != t {
				tokens = append(tokens, base)
			}
		}
	}
	rest, first := tokens, true
	for _, p := range pattern {
		if p == "*" {
			continue
		}
		found := false
		if strings.HasPrefix(p, "-") {
			found = slices.ContainsFunc(tokens, func(t string) bool { return sameOption(p, t) })
		} else if i := slices.IndexFunc(rest, func(t string) bool { return glob(p, t) }); i >= 0 {
			rest, found = rest[i+1:], true
		}
		if !found && (first || !unknown) {
			return false
		}
		first = false
	}
	return true
}

// sameOption reports whether two options may be forms of the same: they share a letter, the first one
// of a long option.
func sameOption(a, b string) bool {
	letters := func(option string) string {
		if long, ok := strings.CutPrefix(option, "--"); ok {
			return long[:min(1, len(long))]
		}
		return strings.TrimPrefix(option, "-")
	}
	return strings.HasPrefix(b, "-") && strings.ContainsAny(letters(a), letters(b))
}

// baseOf returns a command with the name of its program without the folder.
func baseOf(cmd []word) []word {
	if len(cmd) == 0 || !cmd[0].known {
		return cmd
	}
	return append([]word{{text: path.Base(cmd[0].text), known: true}}, cmd[1:]...)
}
