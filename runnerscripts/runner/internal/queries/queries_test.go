package queries

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// driven is a queue that words drive. said describes its actions in words.
type driven struct {
	Queue
	said []string
}

func (d *driven) say(format string, args ...any) {
	d.said = append(d.said, fmt.Sprintf(format, args...))
}

func (d *driven) perform(actions []Action) {
	for _, a := range actions {
		switch p := a.Payload.(type) {
		case runnerscripts.QueryStarted:
			d.say("start %s", a.Query)
			continue
		case runnerscripts.QueryCompleted:
			d.say("%s %s", p.StopReason, a.Query)
			continue
		case runnerscripts.QueryFailed:
			d.say("fail %s", a.Query)
			continue
		case runnerscripts.PermissionResolved:
			d.say("%s %s of %s", p.Reason, p.ID, a.Query)
			continue
		case runnerscripts.QueryOutput:
			d.say("offer %s", p.ID)
			continue
		}
		switch a.Do {
		case Report:
			d.say("report %s", a.Type)
		case Interrupt:
			d.say("INTERRUPT")
		case StartGrace:
			d.say("grace %s", a.Query)
		case StopStart:
			d.say("STOP START")
		case Reject:
			d.say("REJECT %s", a.Request)
		}
	}
}

func (d *driven) emit(payload any, word string) {
	query, actions, ok := d.Emit(payload)
	if ok {
		d.say("%s of %s", word, query)
	}
	d.perform(actions)
}

// do calls the method that a word names, with an ID.
func (d *driven) do(word, id string) {
	var err error
	switch word {
	case "add":
		var actions []Action
		_, actions, err = d.Add(Prompt{ID: id, Text: "text"})
		d.perform(actions)
	case "accept":
		d.Accept(id)
	case "started":
		d.Started()
	case "next":
		_, actions, ok, done := d.Next()
		d.perform(actions)
		if !ok {
			d.say("%s", map[bool]string{false: "wait", true: "done"}[done])
		}
	case "interrupt":
		d.perform(d.Interrupt(id))
	case "withdraw":
		if d.Withdraw(id) {
			d.say("END")
		}
	case "expire":
		if d.Expire(id) {
			d.say("KILL")
		}
	case "works":
		d.emit(runnerscripts.ContentChunk{}, "chunk")
	case "asks":
		d.emit(runnerscripts.PermissionRequest{ID: id}, "asks "+id)
	case "resolves":
		d.emit(runnerscripts.PermissionResolved{ID: id}, "resolves "+id)
	case "answer":
		var ok bool
		if ok, err = d.Answer(id); ok {
			d.say("ANSWER %s", id)
		}
	case "offer":
		d.perform(d.Offer(nil))
	case "accept-output":
		d.Judge(id, "")
	case "reject-output":
		d.Judge(id, "again")
	case "verdict":
		next, cancelled, ok := d.Verdict()
		d.say("%s", map[bool]string{false: "wait", true: "goes on " + next}[ok]+map[bool]string{true: "cancelled"}[cancelled])
	case "close":
		d.perform(d.Close())
	case "complete":
		d.perform(d.Complete(runnerscripts.QueryCompleted{StopReason: runnerscripts.StopEndTurn}))
	case "fail":
		d.perform(d.Fail(runnerscripts.QueryFailed{}))
	case "abandon":
		d.perform(d.Abandon(nil))
	case "crash":
		d.perform(d.Abandon(&runnerscripts.ScriptFailure{}))
	default:
		panic(word)
	}
	if err != nil {
		d.say("refused")
	}
}

// run is the sequence that starts a query in a started agent.
const run = "started; add a; accept a; next; "

// Each case is a race that was lost once, or could be lost.
func TestRaces(t *testing.T) {
	for name, c := range map[string]struct{ do, want string }{
		"a query runs and completes":                 {run + "works; complete; next", "start a, chunk of a, end_turn a, wait"},
		"prompts run one after the other":            {run + "add b; accept b; next; complete; next; complete", "start a, wait, end_turn a, start b, end_turn b"},
		"a prompt waits for what was sent before it": {"started; add a; next; accept a; next", "wait, start a"},
		"a pending prompt holds those behind it":     {"started; add a; add b; accept b; next; accept a; next", "wait, start a"},
		"a prompt without an ID gets one":            {"started; add; accept query-1; next", "start query-1"},
		"a prompt of an ID that has not ended":       {run + "add a; add b; add b", "start a, refused, refused"},
		"a prompt of an ID that has ended":           {run + "complete; add a; accept a; next", "start a, end_turn a, start a"},
		"no prompt comes after the end of the input": {run + "close; next; complete; next", "start a, wait, end_turn a, done"},
		"a prompt is there at the end of the input":  {"started; add a; close; next; accept a; next; complete; next", "wait, start a, end_turn a, done"},

		"a prompt is withdrawn while the agent starts":  {"add a; accept a; withdraw a; add b; abandon", "END"},
		"a prompt is withdrawn before it comes":         {"started; withdraw a; add a; accept a; next; abandon", "END, wait"},
		"a prompt is withdrawn before it runs":          {"started; add a; withdraw a; accept a; next; abandon", "END, wait"},
		"a prompt is withdrawn once it runs":            {run + "withdraw a; complete", "start a, end_turn a"},
		"a prompt is withdrawn after its end":           {run + "complete; withdraw a; add b; accept b; next", "start a, end_turn a, start b"},
		"a prompt is withdrawn while another one waits": {"started; add b; accept b; add a; accept a; withdraw a; next; complete; next", "start b, end_turn b, start a"},

		"an interrupt without a query":                    {"started; interrupt; add a; accept a; next; works", "start a, chunk of a"},
		"an interrupt while the agent works":              {run + "works; interrupt a; complete", "start a, chunk of a, grace a, INTERRUPT, end_turn a"},
		"an interrupt that names no query":                {run + "works; interrupt; complete", "start a, chunk of a, grace a, INTERRUPT, end_turn a"},
		"an interrupt before the agent begins":            {run + "interrupt a; works; works", "start a, grace a, chunk of a, INTERRUPT, chunk of a"},
		"an interrupt right behind its prompt":            {"started; add a; interrupt a; accept a; next", "start a, cancelled a, wait"},
		"an interrupt of a prompt that waits":             {run + "works; add b; accept b; interrupt b; complete; next", "start a, chunk of a, start b, cancelled b, end_turn a, wait"},
		"an interrupt leaves the prompts behind it":       {run + "works; add b; accept b; interrupt a; complete; next", "start a, chunk of a, grace a, INTERRUPT, end_turn a, start b"},
		"an interrupt before its prompt":                  {"started; interrupt a; add a; accept a; next; add b; accept b; next", "start a, cancelled a, wait, start b"},
		"an interrupt while the agent starts":             {"add a; accept a; interrupt a", "start a, cancelled a, STOP START"},
		"an interrupt of one of two while it starts":      {"add a; accept a; add b; interrupt; accept b; started; next", "start a, cancelled a, start b"},
		"interrupts of both while it starts":              {"add a; add b; interrupt a; interrupt b", "start a, cancelled a, start b, cancelled b, STOP START"},
		"a prompt behind the interrupt of a start":        {"add a; accept a; interrupt a; add b; accept b; started; next; abandon", "start a, cancelled a, STOP START, wait"},
		"a prompt interrupted before a stopped start":     {"add a; interrupt a; interrupt b; add b; abandon", "start a, cancelled a, STOP START"},
		"a second interrupt":                              {run + "works; interrupt a; interrupt a; interrupt", "start a, chunk of a, grace a, INTERRUPT"},
		"a second interrupt does not stop the next":       {run + "works; add b; accept b; interrupt; complete; interrupt a; next; works", "start a, chunk of a, grace a, INTERRUPT, end_turn a, start b, chunk of b"},
		"an interrupt of a query that has just ended":     {run + "complete; interrupt a; add b; accept b; next; works", "start a, end_turn a, start b, chunk of b"},
		"an interrupt of an ID that is used again":        {run + "complete; interrupt a; add a; accept a; next; works", "start a, end_turn a, start a, chunk of a"},
		"an agent that does not stop":                     {run + "works; interrupt a; expire a; fail", "start a, chunk of a, grace a, INTERRUPT, KILL, fail a"},
		"an agent that does not begin":                    {run + "interrupt a; expire a; fail", "start a, grace a, KILL, fail a"},
		"an agent that stops in time":                     {run + "works; interrupt a; complete; expire a", "start a, chunk of a, grace a, INTERRUPT, end_turn a"},
		"the grace of a query that has ended":             {run + "works; interrupt a; complete; add b; accept b; next; expire a; expire b", "start a, chunk of a, grace a, INTERRUPT, end_turn a, start b"},
		"the agent ends with prompts queued":              {run + "add b; accept b; add c; fail; crash; next", "start a, fail a, start b, fail b, start c, fail c, done"},
		"a shutdown with prompts queued":                  {run + "add b; accept b; add c; complete; abandon", "start a, end_turn a, start b, cancelled b, start c, cancelled c"},
		"a shutdown while the agent starts":               {"add a; accept a; add b; abandon", "start a, cancelled a, start b, cancelled b"},
		"a start that fails":                              {"add a; accept a; crash", "start a, fail a"},
		"an interrupt of a prompt that has failed":        {"add a; accept a; crash; interrupt a", "start a, fail a"},
		"an event between two queries belongs to none":    {run + "complete; works", "start a, end_turn a, chunk of "},
		"an event between two queries begins none":        {"started; works; add a; accept a; next; interrupt a; works", "chunk of , start a, grace a, chunk of a, INTERRUPT"},
		"a request is answered":                           {run + "asks p; answer p; resolves p; complete", "start a, asks p of a, ANSWER p, resolves p of a, end_turn a"},
		"a request is answered twice":                     {run + "asks p; answer p; answer p", "start a, asks p of a, ANSWER p, refused"},
		"a request is answered that does not wait":        {run + "answer p", "start a, refused"},
		"a request is withdrawn before its answer":        {run + "asks p; resolves p; answer p", "start a, asks p of a, resolves p of a, refused"},
		"a request is withdrawn while it is answered":     {run + "asks p; answer p; resolves p; resolves p", "start a, asks p of a, ANSWER p, resolves p of a"},
		"a request is repeated":                           {run + "asks p; asks p; answer p; asks p; resolves p", "start a, asks p of a, ANSWER p, resolves p of a"},
		"a request comes again after its end":             {run + "asks p; resolves p; asks p; resolves p", "start a, asks p of a, resolves p of a, asks p of a, resolves p of a"},
		"a request ends with its query":                   {run + "asks p; asks q; answer q; complete; resolves p; answer p", "start a, asks p of a, asks q of a, ANSWER q, cancelled p of a, cancelled q of a, end_turn a, refused"},
		"a request ends with its failed query":            {run + "asks p; fail", "start a, asks p of a, cancelled p of a, fail a"},
		"an answer after an interrupt":                    {run + "asks p; interrupt a; answer p; complete", "start a, asks p of a, grace a, INTERRUPT, cancelled p of a, end_turn a"},
		"a request after an interrupt":                    {run + "interrupt a; asks p; answer p; complete", "start a, grace a, asks p of a, INTERRUPT, cancelled p of a, end_turn a"},
		"a request at the end of the input":               {run + "asks p; asks q; answer q; close; resolves p", "start a, asks p of a, asks q of a, ANSWER q, REJECT p, resolves p of a"},
		"a request after the end of the input":            {run + "close; asks p; answer p; resolves p", "start a, asks p of a, REJECT p, refused, resolves p of a"},
		"a request between two queries ends with a next":  {run + "complete; asks p; add b; accept b; next; complete", "start a, end_turn a, asks p of , start b, cancelled p of b, end_turn b"},
		"an output waits for its verdict":                 {run + "offer; verdict; accept-output a-output-1; verdict", "start a, offer a-output-1, wait, goes on "},
		"an output is rejected":                           {run + "offer; reject-output a-output-1; verdict; offer; verdict; accept-output a-output-2; verdict", "start a, offer a-output-1, goes on again, offer a-output-2, wait, goes on "},
		"the first verdict counts":                        {run + "offer; reject-output a-output-1; accept-output a-output-1; verdict", "start a, offer a-output-1, goes on again"},
		"a late verdict does not count":                   {run + "offer; reject-output a-output-1; verdict; offer; accept-output a-output-1; verdict", "start a, offer a-output-1, goes on again, offer a-output-2, wait"},
		"a verdict on an output of another query":         {run + "offer; accept-output b-output-1; accept-output; verdict", "start a, offer a-output-1, wait"},
		"a verdict before an output":                      {run + "accept-output a-output-0; accept-output a-output-1; offer; verdict", "start a, offer a-output-1, wait"},
		"a verdict without a query":                       {run + "offer; complete; accept-output a-output-1; next", "start a, offer a-output-1, end_turn a, wait"},
		"an interrupt while an output waits":              {run + "works; offer; interrupt a; verdict; complete", "start a, chunk of a, offer a-output-1, grace a, goes on cancelled, end_turn a"},
		"an interrupt after a verdict":                    {run + "works; offer; reject-output a-output-1; interrupt a; verdict", "start a, chunk of a, offer a-output-1, grace a, goes on cancelled"},
		"an event while an output waits begins no turn":   {run + "works; offer; works; interrupt a; works; verdict", "start a, chunk of a, offer a-output-1, chunk of a, grace a, chunk of a, goes on cancelled"},
		"an event before a verdict begins no turn":        {run + "works; offer; works; reject-output a-output-1; verdict; interrupt a; works", "start a, chunk of a, offer a-output-1, chunk of a, goes on again, grace a, chunk of a, INTERRUPT"},
		"an interrupt before the next turn begins":        {run + "works; offer; reject-output a-output-1; verdict; interrupt a; works", "start a, chunk of a, offer a-output-1, goes on again, grace a, chunk of a, INTERRUPT"},
		"an output at the end of the input":               {run + "offer; close; verdict; complete", "start a, offer a-output-1, goes on , end_turn a"},
		"an output after the end of the input":            {run + "close; offer; verdict", "start a, offer a-output-1, goes on "},
		"a verdict before the end of the input":           {run + "offer; reject-output a-output-1; close; verdict; offer; verdict", "start a, offer a-output-1, goes on again, offer a-output-2, goes on "},
		"a request between two queries that ends with it": {run + "complete; asks p; abandon", "start a, end_turn a, asks p of , cancelled p of "},
	} {
		t.Run(name, func(t *testing.T) {
			var d driven
			for step := range strings.SplitSeq(c.do, ";") {
				word, id, _ := strings.Cut(strings.TrimSpace(step), " ")
				d.do(word, id)
			}
			if got := strings.Join(d.said, ", "); got != c.want {
				t.Errorf("%s\n got %s\nwant %s", c.do, got, c.want)
			}
		})
	}
}

func TestBadPromptsAreRefused(t *testing.T) {
	var q Queue
	if _, _, err := q.Add(Prompt{ID: "a"}); err == nil {
		t.Error("a prompt without a text was taken")
	}
	for i := range maxWaiting {
		if _, _, err := q.Add(Prompt{ID: strconv.Itoa(i), Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := q.Add(Prompt{Text: "x"}); err == nil {
		t.Errorf("%d prompts wait", maxWaiting+1)
	}
}

// In any order of events each prompt gets one end and each request one resolution, and
// no interrupt is lost.
func TestRandomOrders(t *testing.T) {
	for seed := range uint64(5_000) {
		randomOrder(t, seed)
		if t.Failed() {
			return
		}
	}
}

func randomOrder(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var d driven
	var history []string
	do := func(word, id string) {
		history = append(history, word+" "+id)
		d.do(word, id)
	}
	prompts := map[string]bool{} // false for a prompt added after STOP START
	stopped := map[string]bool{} // interrupted before the agent had them: it must not get them
	next := func() {
		if before := d.Running(); d.IsStarted() {
			if do("next", ""); d.Running() != before && stopped[d.Running()] {
				t.Errorf("the interrupt of %s is lost", d.Running())
			}
		}
	}
	interrupted := "" // the running query, if it was interrupted
	closed := false
	for range 40 {
		id, request := string(rune('a'+rnd.IntN(6))), string(rune('p'+rnd.IntN(3)))
		switch rnd.IntN(12) {
		case 0, 1:
			if _, used := prompts[id]; !closed && !used { // an ID is used once here
				prompts[id] = !slices.Contains(d.said, "STOP START")
				do("add", id)
			}
		case 2, 3:
			do("accept", id)
		case 4:
			do("started", "")
		case 5:
			next()
		case 6:
			if d.Running() == id {
				interrupted = id
			} else {
				stopped[id] = prompts[id]
			}
			do("interrupt", id)
		case 7, 8:
			if d.IsStarted() {
				do([]string{"works", "asks"}[rnd.IntN(2)], request)
			}
		case 9:
			do("resolves", request)
		case 10:
			do("answer", request)
		case 11:
			switch {
			case d.Running() != "" && rnd.IntN(2) == 0:
				do("complete", "")
			case rnd.IntN(4) == 0:
				closed = true
				do("close", "")
			}
		}
		if r := d.Running(); r != "" && d.Expire(r) != (r == interrupted) {
			t.Errorf("the interrupt of %s: %v", r, r == interrupted)
		}
	}
	if d.Running() != "" {
		do("fail", "")
	}
	do("crash", "")
	checkPromises(t, prompts, d.said)
	if t.Failed() {
		t.Errorf("seed %d: %s\n said %s", seed, strings.Join(history, ", "), strings.Join(d.said, ", "))
	}
}

// checkPromises checks the promises of the package against everything in said.
func checkPromises(t *testing.T, prompts map[string]bool, said []string) {
	starts, ends, open := map[string]int{}, map[string]int{}, map[string]bool{}
	for i, s := range said {
		words := strings.Fields(s)
		switch words[0] {
		case "start":
			starts[words[1]]++
			if ends[words[1]] > 0 {
				t.Errorf("%q after its end", s)
			}
		case "end_turn", "cancelled", "fail":
			if len(words) > 2 {
				if !open[words[1]] {
					t.Errorf("%q, which does not wait", s)
				}
				delete(open, words[1])
				continue
			}
			ends[words[1]]++
			if ran := i == 0 || said[i-1] != "start "+words[1]; ran && len(open) > 0 {
				t.Errorf("%q while %v wait", s, open)
			}
		case "asks":
			if open[words[1]] {
				t.Errorf("%q, which waits already", s)
			}
			open[words[1]] = true
		case "resolves":
			if !open[words[1]] {
				t.Errorf("%q, which does not wait", s)
			}
			delete(open, words[1])
		}
	}
	for id, taken := range prompts {
		want := 0
		if taken {
			want = 1
		}
		if starts[id] != want || ends[id] != want {
			t.Errorf("prompt %s has started %d times and ended %d times, want %d", id, starts[id], ends[id], want)
		}
	}
	if len(open) > 0 {
		t.Errorf("requests %v have no resolution", open)
	}
}
