package llmapi

// end is how the stream of an answer ends.
type end int

const (
	endWell     end = iota
	endLimit        // at the limit of tokens
	endFiltered     // by a filter of content
	endBroken       // with an error, after its first block
)

// brokenMessage is what an answer says that ends with an error.
const brokenMessage = "scripted failure in the stream"

// ends is an answer in words that ends otherwise than well.
func ends(e end) scenario {
	return func(question, string) answer { return answer{blocks: []block{text("This answer ends too")}, end: e} }
}

// word is how an API says the end: well, or with the words for a limit and a filter.
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
