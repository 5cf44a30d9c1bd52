// Package closest finds the name that a user most likely meant by a mistyped one.
package closest

import "strings"

// Name returns the name that is closest to given, within two edits, or "".
func Name(given string, names []string) string {
	found, least := "", 3
	for _, name := range names {
		if d := edits(strings.ToLower(given), name); d < least && d < len(name) {
			found, least = name, d
		}
	}
	return found
}

// edits returns the edit distance of a and b: the number of characters to insert, remove or
// replace, and of neighbors to swap.
func edits(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
