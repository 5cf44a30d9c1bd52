package runnerscripts

import (
	"encoding/json"
	"unicode/utf8"
)

// TypeOf returns the type of an event without decoding the rest of its line. It does not allocate
// for a known type. It returns "" if the line has no type. A line that has a type need not be valid
// JSON. If the line has several types, TypeOf returns the first.
func TypeOf(line []byte) EventType {
	i := skipSpace(line, 0)
	if i >= len(line) || line[i] != '{' {
		return ""
	}
	for i = skipSpace(line, i+1); i < len(line) && line[i] == '"'; i = skipSpace(line, i+1) {
		key, value, ok := scanKey(line, i)
		if !ok {
			break
		}
		end, plain := scanField(line, value)
		if end == refused {
			break
		}
		if string(key) == "type" {
			if plain {
				return knownType(line[value+1 : end-1])
			}
			break
		}
		if i = skipSpace(line, end); i >= len(line) || line[i] != ',' {
			break
		}
	}
	var slow struct{ Type EventType }
	if json.Unmarshal(line, &slow) != nil {
		return ""
	}
	return slow.Type
}

// scanKey returns the key whose quote is b[i] and the index of its value. ok is false for a key
// with an escape.
func scanKey(b []byte, i int) (key []byte, value int, ok bool) {
	end := plainEnd(b, i+1)
	if end >= len(b) || b[end] != '"' {
		return nil, 0, false
	}
	value = skipSpace(b, end+1)
	if value >= len(b) || b[value] != ':' {
		return nil, 0, false
	}
	return b[i+1 : end], skipSpace(b, value+1), true
}

func knownType(s []byte) EventType {
	if k, ok := eventKinds[EventType(s)]; ok {
		return k.typ
	}
	return EventType(s)
}

// names keeps the strings of the last event, because the next event mostly has the same ones.
type names struct{ session, conversation, query, source string }

// keep returns s as a string. It reuses *last if both are equal.
func keep(last *string, s []byte) string {
	if string(s) != *last {
		*last = string(s)
	}
	return *last
}

// The keys of an event, as bits.
const (
	seenSeq = 1 << iota
	seenType
	seenPayload
	seenSession
	seenConversation
	seenQuery
	seenSource
	seenTime
	seenIndex
)

// scanEvent decodes an event that is written in the usual way: each known key at most once, no
// other keys, no escapes outside the payload. ok is false for every other line, valid or not.
func scanEvent(line []byte, n *names) (ev Event, ok bool) {
	i := skipSpace(line, 0)
	if i >= len(line) || line[i] != '{' {
		return ev, false
	}
	seen := 0
	for {
		if i = skipSpace(line, i+1); i >= len(line) || line[i] != '"' {
			return ev, false
		}
		key, value, ok := scanKey(line, i)
		if !ok {
			return ev, false
		}
		end, plain := scanField(line, value)
		if end == refused {
			return ev, false
		}
		bit := setField(&ev, n, key, line[value:end:end], plain)
		if bit == 0 || seen&bit != 0 {
			return ev, false
		}
		seen |= bit
		if i = skipSpace(line, end); i >= len(line) {
			return ev, false
		}
		if line[i] == '}' {
			return ev, skipSpace(line, i+1) == len(line)
		}
		if line[i] != ',' {
			return ev, false
		}
	}
}

// scanField scans a value. plain reports whether the value is a string without escapes.
func scanField(b []byte, i int) (end int, plain bool) {
	if i < len(b) && b[i] == '"' {
		if end = plainEnd(b, i+1); end < len(b) && b[end] == '"' {
			return end + 1, utf8.Valid(b[i+1 : end])
		}
	}
	return scanValue(b, i, 1), false
}

// setField sets one field of an event and returns its bit, or 0 if encoding/json
// must decode the event.
func setField(ev *Event, n *names, key, value []byte, plain bool) int {
	switch string(key) {
	case "payload":
		ev.Payload = value
		return seenPayload
	case "time":
		if !plain || ev.Time.UnmarshalJSON(value) != nil {
			return 0
		}
		return seenTime
	case "seq":
		var ok bool
		if ev.Seq, ok = smallNumber(value); !ok {
			return 0
		}
		return seenSeq
	case "index":
		n, ok := smallNumber(value)
		ev.Index = int(n)
		if !ok || ev.Index < 0 || uint64(ev.Index) != n {
			return 0
		}
		return seenIndex
	}
	if !plain {
		return 0
	}
	s := value[1 : len(value)-1]
	switch string(key) {
	case "type":
		ev.Type = knownType(s)
		return seenType
	case "session_id":
		ev.SessionID = keep(&n.session, s)
		return seenSession
	case "conversation_id":
		ev.ConversationID = keep(&n.conversation, s)
		return seenConversation
	case "query_id":
		ev.QueryID = keep(&n.query, s)
		return seenQuery
	case "source":
		ev.Source = Source(keep(&n.source, s))
		return seenSource
	}
	return 0
}

// smallNumber returns the value of up to 18 digits.
func smallNumber(value []byte) (n uint64, ok bool) {
	if len(value) > 18 {
		return 0, false
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}
