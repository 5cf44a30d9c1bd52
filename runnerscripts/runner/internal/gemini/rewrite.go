package gemini

import (
	"encoding/json"
	"slices"
	"strings"
)

// repeats returns the IDs of the messages that only repeat earlier messages. When the program
// shortens its history, it writes the history again under new IDs, followed by
// {"$set":{"messages":[...]}} with those IDs. Messages with new text, such as a summary, are not
// repeats.
func repeats(text string) map[string]bool {
	list := map[string]bool{}
	type words struct{ typ, text string }
	said := map[string]words{}
	var order []string
	for line := range strings.Lines(text) {
		var r entry
		if json.Unmarshal([]byte(line), &r) != nil {
			continue
		}
		if r.ID != "" {
			if _, known := said[r.ID]; !known {
				order = append(order, r.ID)
			}
			said[r.ID] = words{r.Type, r.Content.text()}
			continue
		}
		kept := setIDs(r.Set)
		if len(kept) == 0 || len(kept) >= len(order) {
			continue
		}
		before, again := order[:len(order)-len(kept)], order[len(order)-len(kept):]
		if !slices.Equal(again, kept) {
			continue // the program has only dropped messages
		}
		earlier := map[words]bool{}
		for _, id := range before {
			earlier[said[id]] = true
		}
		for _, id := range again {
			list[id] = list[id] || earlier[said[id]]
		}
	}
	return list
}

// setIDs returns the IDs of the messages in the value of "$set".
func setIDs(set json.RawMessage) []string {
	var change struct {
		Messages []struct {
			ID string `json:"id"`
		} `json:"messages"`
	}
	if set == nil || json.Unmarshal(set, &change) != nil {
		return nil
	}
	var ids []string
	for _, m := range change.Messages {
		ids = append(ids, m.ID)
	}
	return ids
}
