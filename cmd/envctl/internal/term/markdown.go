package term

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	table "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/agentenv-dev/agentenv/internal/visible"
)

// markdown draws Markdown as lines of spans. It hides nothing: link targets, HTML and comments
// are shown.
type markdown struct {
	source []byte
	width  int
	lines  [][]Span
}

// DrawMarkdown draws text as lines that fit a width.
func DrawMarkdown(source string, width int) [][]Span {
	m := &markdown{source: []byte(source), width: width}
	// Do not parse link references: their definitions would be hidden.
	p := parser.NewParser(
		parser.WithBlockParsers(parser.DefaultBlockParsers()...),
		parser.WithInlineParsers(append(parser.DefaultInlineParsers(), util.Prioritized(extension.NewStrikethroughParser(), 500))...),
		parser.WithParagraphTransformers(util.Prioritized(extension.NewTableParagraphTransformer(), 200)),
	)
	m.blocks(p.Parse(text.NewReader(m.source)), nil, nil)
	return m.lines
}

// blocks draws the blocks in a node. The first line begins with first, all others with
// hang.
func (m *markdown) blocks(parent ast.Node, first, hang []Span) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		_, isTable := n.(*table.Table) // the parser does not record blank lines before a table
		if n.PreviousSibling() != nil && (n.HasBlankPreviousLines() || isTable) {
			m.lines = append(m.lines, hang)
		}
		m.block(n, first, hang)
		first = hang
	}
}

func (m *markdown) block(n ast.Node, first, hang []Span) {
	switch n := n.(type) {
	case *ast.Heading:
		m.flow(m.inline(n, "1"), first, hang)
	case *ast.Paragraph, *ast.TextBlock:
		m.flow(m.inline(n, ""), first, hang)
	case *ast.List:
		m.list(n, first, hang)
	case *ast.Blockquote:
		m.blocks(n, with(first, Dim("> ")), with(hang, Dim("> ")))
	case *ast.ThematicBreak:
		m.lines = append(m.lines, with(first, Dim(strings.Repeat("─", max(min(m.width-columnsOfAll(first), 40), 3)))))
	case *table.Table:
		m.table(n, first, hang)
	case *ast.FencedCodeBlock, *ast.CodeBlock:
		m.verbatim(n.Lines(), Cyan, with(first, Plain("  ")), with(hang, Plain("  ")))
	case *ast.HTMLBlock:
		lines := *n.Lines()
		if n.HasClosure() {
			lines.Append(n.ClosureLine)
		}
		m.verbatim(&lines, Plain, first, hang)
	}
}

// with returns a prefix that is longer by a span.
func with(prefix []Span, s Span) []Span { return append(prefix[:len(prefix):len(prefix)], s) }

func (m *markdown) flow(text, first, hang []Span) {
	m.lines = append(m.lines, Flow(text, m.width, first, hang)...)
}

// verbatim draws lines as they are written.
func (m *markdown) verbatim(lines *text.Segments, paint func(string) Span, first, hang []Span) {
	for i := range lines.Len() {
		at := lines.At(i)
		line := visible.Text(strings.TrimRight(string(at.Value(m.source)), "\n"))
		m.lines = append(m.lines, with(first, paint(line)))
		first = hang
	}
}

func (m *markdown) list(list *ast.List, first, hang []Span) {
	number := list.Start
	for item := list.FirstChild(); item != nil; item = item.NextSibling() {
		mark := "• "
		if list.IsOrdered() {
			mark = fmt.Sprintf("%d%c ", number, list.Marker)
			number++
		}
		if item.PreviousSibling() != nil && item.HasBlankPreviousLines() {
			m.lines = append(m.lines, hang)
		}
		begin, further := with(first, Plain(mark)), with(hang, Plain(strings.Repeat(" ", columns(mark))))
		if item.FirstChild() == nil {
			m.lines = append(m.lines, begin)
		}
		m.blocks(item, begin, further)
		first = hang
	}
}

// table draws a table as output.table does.
func (m *markdown) table(n *table.Table, first, hang []Span) {
	var rows [][]Span
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []Span
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			var text strings.Builder
			for _, s := range m.inline(cell, "") {
				text.WriteString(s.Text)
			}
			style := ""
			if _, header := row.(*table.TableHeader); header {
				style = "1"
			}
			cells = append(cells, Span{style, visible.Line(text.String())})
		}
		rows = append(rows, cells)
	}
	for _, line := range tableLines(rows, m.width-columnsOfAll(hang)) {
		m.lines = append(m.lines, append(with(first, Plain("")), line...))
		first = hang
	}
}

// inline returns the text of a node in a style.
func (m *markdown) inline(parent ast.Node, style string) []Span {
	var spans []Span
	add := func(style, text string) { spans = append(spans, Span{style, visible.Text(text)}) }
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			text := string(n.Value(m.source))
			if !n.IsRaw() {
				text = meantBy(n.Value(m.source))
			}
			if n.SoftLineBreak() || n.HardLineBreak() {
				text += "\n" // keep the line breaks of the agent
			}
			add(style, text)
		case *ast.String:
			add(style, string(n.Value))
		case *ast.CodeSpan:
			spans = append(spans, m.inline(n, and(style, "36"))...)
		case *ast.Emphasis:
			spans = append(spans, m.inline(n, and(style, []string{"3", "1"}[min(n.Level, 2)-1]))...)
		case *table.Strikethrough:
			spans = append(spans, m.inline(n, and(style, "9"))...)
		case *ast.Link:
			spans = append(spans, link(m.inline(n, and(style, "4")), n.Destination, n.Title)...)
		case *ast.Image:
			spans = append(spans, link(m.inline(n, and(style, "4")), n.Destination, n.Title)...)
		case *ast.AutoLink:
			add(and(style, "4"), string(n.Label(m.source)))
		case *ast.RawHTML:
			for i := range n.Segments.Len() {
				at := n.Segments.At(i)
				add(style, string(at.Value(m.source)))
			}
		default:
			spans = append(spans, m.inline(n, style)...)
		}
	}
	return spans
}

// link returns a label followed by the link's target, unless the label is the target.
func link(label []Span, to, title []byte) []Span {
	var text strings.Builder
	for _, s := range label {
		text.WriteString(s.Text)
	}
	address := visible.Line(string(to))
	if len(title) > 0 {
		address += " " + strconv.Quote(string(title))
	}
	if text.String() == address {
		return label
	}
	return append(label, Dim(" ("+address+")"))
}

// meantBy returns text with its references and escapes resolved.
func meantBy(source []byte) string {
	if !bytes.ContainsAny(source, `&\`) {
		return string(source)
	}
	return string(util.UnescapePunctuations(util.ResolveEntityNames(util.ResolveNumericReferences(source))))
}

// and combines two styles.
func and(style, more string) string {
	if style == "" {
		return more
	}
	return style + ";" + more
}
