package llmapi

// end is how an answer's stream ends.
type end int

const (
	endWell     end = iota
	endLimit        // at the token limit
	endFiltered     // by a content filter
	endBroken       // with an error, after its first block
)

// brokenMessage is the error message of endBroken.
const brokenMessage = "scripted failure in the stream"

// ends returns a scenario that answers with text and the given end.
func ends(e end) scenario {
	return func(question, string) answer { return answer{blocks: []block{text("This answer ends too")}, end: e} }
}

// word returns the API's term for the end: well, or the term for a limit or a filter.
func (e end) word(well, limit, filtered string) string {
	switch e {
	case endLimit:
		return limit
	case endFiltered:
		return filtered
	default:
		return well
	}
}
