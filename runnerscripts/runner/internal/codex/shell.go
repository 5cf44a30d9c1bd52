package codex

import (
	"path"
	"slices"
	"strings"
)

// unwrap returns the script of a command that starts a shell, as most commands of Codex do. It
// returns other commands unchanged: also those of a shell in another folder, which the model can name and write.
func unwrap(command string) string {
	words, ok := split(command)
	if !ok {
		return command
	}
	return script(words, command)
}

// script returns the shell script in words, or otherwise if there is none.
func script(words []string, otherwise string) string {
	shells := []string{"bash", "sh", "zsh", "dash"}
	folders := []string{"", "/bin/", "/usr/bin/", "/usr/local/bin/", "/opt/homebrew/bin/"}
	if len(words) != 3 {
		return otherwise
	}
	folder, shell := path.Split(words[0])
	if slices.Contains(shells, shell) && slices.Contains(folders, folder) && (words[1] == "-lc" || words[1] == "-c") {
		return words[2]
	}
	return otherwise
}

// split splits a command into words by the shell's rules for quotes and backslashes. It reports
// whether all quotes are closed.
func split(command string) ([]string, bool) {
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(command); i++ {
		b := command[i]
		switch {
		case quote == '\'' && b != '\'', quote == '"' && b != '"' && b != '\\':
			word.WriteByte(b)
		case quote != 0 && b == quote:
			quote = 0
		case b == '\\' && i+1 < len(command):
			i++
			if quote == '"' && !strings.ContainsRune("$`\"\\\n", rune(command[i])) {
				word.WriteByte('\\')
			}
			word.WriteByte(command[i])
			inWord = true
		case b == '\'' || b == '"':
			quote, inWord = b, true
		case b == ' ' || b == '\t' || b == '\n':
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteByte(b)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, quote == 0
}
