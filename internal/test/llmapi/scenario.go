package llmapi

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// question is the content of a request, independent of the API.
type question struct {
	texts   []string // the user's, oldest first
	results []string // of the tools called since the last text
	tools   []string // names of the offered tools
	notices int      // of ended background tasks since the last text
}

// answer is the model's reply.
type answer struct {
	blocks []block
	// hold stops the stream in the middle of the first block until it is released.
	hold bool
	// status, if not zero, is the HTTP status of a failure instead.
	status int
	// end is how the stream of blocks ends.
	end end
	// echo puts the key of the request into the failure.
	echo bool
}

// failure is the message of a failure.
func (a answer) failure(r *http.Request) string {
	if !a.echo {
		return "scripted failure"
	}
	key := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.Header.Get("X-Goog-Api-Key")
	return "Incorrect API key provided: " + key
}

// block is one content block of an answer; the fields of its kind are set.
type block struct {
	kind   blockKind
	chunks []string // of a text or a thought
	tool   string
	input  map[string]any
}

type blockKind int

const (
	blockText blockKind = iota
	blockThinking
	blockTool
)

// scenario plays one scenario. arg is the text in backticks.
type scenario func(q question, arg string) answer

// scenarios maps the words of the package comment to scenarios. "subwork" is only for the
// prompts of delegate.
func scenarios() map[string]scenario {
	return map[string]scenario{
		"plain-text":  plainText,
		"slow-stream": slowStream,
		"think":       think,
		"slow-think":  slowThink,
		"write-file":  oneTool(writeFile, "The file is written."),
		"edit-file":   oneTool(editFile, "The file is changed."),
		"run-command": oneTool(runCommand, "The command has run."),
		"escalate":    oneTool(escalate, "The command has run."),
		"call-tool":   oneTool(callTool, "The tool has answered."),
		"two-tools":   twoTools,
		"subagent":    subagent,
		"background":  background,
		"subwork":     oneTool(runCommand, "The subagent has done its work."),
		"ask-user":    oneTool(askUser, "Thank you for the answer."),
		"plan":        oneTool(plan, "The plan is made."),
		"remember":    remember,
		"say-text":    sayText,
		"endless":     endless,
		"wake-up":     wakeUp,
		"http-400":    fails(http.StatusBadRequest),
		"http-401":    fails(http.StatusUnauthorized),
		"http-529":    fails(statusOverloaded),
		"echo-key":    echoKey,
		"cut-short":   ends(endLimit),
		"filtered":    ends(endFiltered),
		"broken":      ends(endBroken),
	}
}

// statusOverloaded is Anthropic's own status for an overloaded API.
const statusOverloaded = 529

var (
	wordPattern = regexp.MustCompile(`[a-z0-9]+(-[a-z0-9]+)*`)
	argPattern  = regexp.MustCompile("`([^`]*)`")
)

// answer plays the scenario that the last text names. It also returns the word.
func (q question) answer() (string, answer) {
	known := scenarios()
	text := q.lastText()
	arg := ""
	if m := argPattern.FindStringSubmatch(text); m != nil {
		arg = m[1]
		text = strings.Replace(text, m[0], "", 1)
	}
	for _, word := range wordPattern.FindAllString(text, -1) {
		if play, ok := known[word]; ok {
			return word, play(q, arg)
		}
	}
	return "plain-text", plainText(q, arg)
}

func (q question) lastText() string {
	if len(q.texts) == 0 {
		return ""
	}
	return q.texts[len(q.texts)-1]
}

// text returns a text block in several chunks. Some are only white space, because readers have
// dropped such chunks.
func text(s string) block {
	return block{kind: blockText, chunks: pieces(s)}
}

// pieces splits s into words and the white space between them.
func pieces(s string) []string {
	return piecePattern.FindAllString(s, -1)
}

var piecePattern = regexp.MustCompile(`\s+|\S+`)

func plainText(question, string) answer {
	return answer{blocks: []block{text("Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂.")}}
}

func slowStream(question, string) answer {
	return answer{blocks: []block{text("One two three four five six.")}, hold: true}
}

func think(question, string) answer {
	return answer{blocks: []block{
		{kind: blockThinking, chunks: pieces("Let me think about it. It is simple.")},
		text("I have thought about it."),
	}}
}

func slowThink(q question, arg string) answer {
	a := think(q, arg)
	a.hold = true
	return a
}

func remember(q question, _ string) answer {
	earlier := q.texts[:max(len(q.texts)-1, 0)]
	return answer{blocks: []block{text("You said before: " + strings.Join(earlier, " | "))}}
}

// sayText says the text in backticks.
func sayText(_ question, arg string) answer {
	return answer{blocks: []block{text(arg)}}
}

func endless(q question, _ string) answer {
	return calls("I go on.", q, tool{make: runCommand, arg: "true"})
}

// wakeUp starts a command in the background, and is endless once it is notified of the
// command's end.
func wakeUp(q question, command string) answer {
	switch {
	case len(q.results) == 0:
		return calls("I leave it behind.", q, tool{make: leaveBehind, arg: command})
	case q.notices == 0:
		return answer{blocks: []block{text("It is at work.")}}
	}
	return endless(q, "")
}

func twoTools(q question, _ string) answer {
	if len(q.results) > 0 {
		return answer{blocks: []block{text("Both tools have run.")}}
	}
	return calls("I use two tools.", q, tool{make: writeFile, arg: "two.txt"}, tool{make: runCommand, arg: "echo two"})
}

func subagent(q question, arg string) answer {
	if len(q.results) > 0 {
		return answer{blocks: []block{text("The subagent has reported.")}}
	}
	return calls("I hand this over.", q, tool{make: delegate(false), arg: arg})
}

func background(q question, arg string) answer {
	if len(q.results) > 0 {
		return answer{blocks: []block{text("The subagent is at work.")}}
	}
	return calls("I hand this over for later.", q, tool{make: delegate(true), arg: arg})
}

func fails(status int) scenario {
	return func(question, string) answer { return answer{status: status} }
}

func echoKey(question, string) answer {
	return answer{status: http.StatusUnauthorized, echo: true}
}

// oneTool returns a scenario that calls one tool and, after its result, says done.
func oneTool(mk maker, done string) scenario {
	return func(q question, arg string) answer {
		if len(q.results) > 0 {
			return answer{blocks: []block{text(done)}}
		}
		return calls("I use a tool.", q, tool{make: mk, arg: arg})
	}
}

// tool is a tool call to make.
type tool struct {
	make maker
	arg  string
}

// calls returns an answer that says a sentence and calls tools.
func calls(say string, q question, tools ...tool) answer {
	a := answer{blocks: []block{text(say)}}
	for _, t := range tools {
		b, ok := t.make(q.tools, t.arg)
		if !ok {
			return answer{blocks: []block{text("No tool for this is on offer.")}}
		}
		a.blocks = append(a.blocks, b)
	}
	return a
}

// usesTool reports whether the answer calls a tool.
func (a answer) usesTool() bool {
	return slices.ContainsFunc(a.blocks, func(b block) bool { return b.kind == blockTool })
}
