package script

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestMain(m *testing.M) { testleak.Main(m) }

func TestEmbeddedDemonstrationIsAValidScenario(t *testing.T) {
	sc, err := loadScenario(rs.Session{})
	if err != nil || len(sc.Turns) == 0 || sc.Turns[0].When != "" {
		t.Errorf("%+v, %v", sc, err)
	}
}

func TestChunksAreTheTextAndCutBetweenWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":             {""},
		"one":          {"one"},
		"a b c d":      {"a b c d"},
		"a b c d e":    {"a b c d ", "e"},
		" a\n\nb c d":  {" a\n\nb c d"},
		"ä 十 🌍 d  e\n": {"ä 十 🌍 d  ", "e\n"},
		"   ":          {"   "},
	} {
		if got := chunks(text); !slices.Equal(got, want) || strings.Join(got, "") != text {
			t.Errorf("chunks(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestTurnsAreChosenByWhenElseInOrderAndAgainFromTheStart(t *testing.T) {
	turn := func(name, when string) rs.ScenarioTurn {
		return rs.ScenarioTurn{When: when, Steps: []rs.ScenarioStep{{Text: name}}}
	}
	sc := rs.Scenario{Turns: []rs.ScenarioTurn{turn("1", ""), turn("w", "why"), turn("2", "")}}
	var got []string
	for _, turn := range turnsFor(sc, []string{"a", "but why?", "b", "c", "why not"}) {
		got = append(got, turn.Steps[0].Text)
	}
	if want := []string{"1", "w", "2", "1", "w"}; !slices.Equal(got, want) {
		t.Errorf("turns %q, want %q", got, want)
	}
}

func TestOutputOverTheLimitIsCutBetweenCharacters(t *testing.T) {
	var b boundedBuffer
	in := "x" + strings.Repeat("ü", mostOutput)
	for len(in) > 0 {
		n := min(len(in), 1001)
		if got, err := b.Write([]byte(in[:n])); got != n || err != nil {
			t.Fatal(got, err)
		}
		in = in[n:]
	}
	text := b.text()
	if !b.dropped || !utf8.ValidString(text) || strings.Contains(text, "\uFFFD") || len(text) != mostOutput-1 {
		t.Errorf("%d bytes kept, valid %v", len(text), utf8.ValidString(text))
	}
}

func TestHistoryWithHalfALineIsReadAndContinued(t *testing.T) {
	name := filepath.Join(t.TempDir(), "d", "h.jsonl")
	const first = `{"type":"query_started","payload":{"prompt":"one"},"time":"2026-11-21T09:12:04Z"}` + "\n" + `{"type":"agent_mess`
	if err := restore(name, first); err != nil {
		t.Fatal(err)
	}
	h, err := openHistory(name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.file.Close()
	if err := h.append(rs.Event{Type: rs.TypeQueryStarted, Payload: json.RawMessage(`{"prompt":"<two>"}`)}); err != nil {
		t.Fatal(err)
	}
	p, err := readHistory(name)
	if err != nil || !slices.Equal(p.prompts, []string{"one", "<two>"}) || !strings.HasPrefix(p.text, first+"\n") {
		t.Errorf("%+v, %v", p, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err != nil || len(entries) != 1 {
		t.Errorf("left beside the history: %v, %v", entries, err)
	}
}
