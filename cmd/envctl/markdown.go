package main

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
	lines  [][]span
}

// drawMarkdown draws text as lines that fit a width.
func drawMarkdown(source string, width int) [][]span {
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
func (m *markdown) blocks(parent ast.Node, first, hang []span) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		_, isTable := n.(*table.Table) // the parser does not record blank lines before a table
		if n.PreviousSibling() != nil && (n.HasBlankPreviousLines() || isTable) {
			m.lines = append(m.lines, hang)
		}
		m.block(n, first, hang)
		first = hang
	}
}

func (m *markdown) block(n ast.Node, first, hang []span) {
	switch n := n.(type) {
	case *ast.Heading:
		m.flow(m.inline(n, "1"), first, hang)
	case *ast.Paragraph, *ast.TextBlock:
		m.flow(m.inline(n, ""), first, hang)
	case *ast.List:
		m.list(n, first, hang)
	case *ast.Blockquote:
		m.blocks(n, with(first, dim("> ")), with(hang, dim("> ")))
	case *ast.ThematicBreak:
		m.lines = append(m.lines, with(first, dim(strings.Repeat("─", max(min(m.width-columnsOfAll(first), 40), 3)))))
	case *table.Table:
		m.table(n, first, hang)
	case *ast.FencedCodeBlock, *ast.CodeBlock:
		m.verbatim(n.Lines(), cyan, with(first, plain("  ")), with(hang, plain("  ")))
	case *ast.HTMLBlock:
		lines := *n.Lines()
		if n.HasClosure() {
			lines.Append(n.ClosureLine)
		}
		m.verbatim(&lines, plain, first, hang)
	}
}

// with returns a prefix that is longer by a span.
func with(prefix []span, s span) []span { return append(prefix[:len(prefix):len(prefix)], s) }

func (m *markdown) flow(text, first, hang []span) {
	m.lines = append(m.lines, flow(text, m.width, first, hang)...)
}

// verbatim draws lines as they are written.
func (m *markdown) verbatim(lines *text.Segments, paint func(string) span, first, hang []span) {
	for i := range lines.Len() {
		at := lines.At(i)
		line := visible.Text(strings.TrimRight(string(at.Value(m.source)), "\n"))
		m.lines = append(m.lines, with(first, paint(line)))
		first = hang
	}
}

func (m *markdown) list(list *ast.List, first, hang []span) {
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
		begin, further := with(first, plain(mark)), with(hang, plain(strings.Repeat(" ", columns(mark))))
		if item.FirstChild() == nil {
			m.lines = append(m.lines, begin)
		}
		m.blocks(item, begin, further)
		first = hang
	}
}

// table draws a table as output.table does.
func (m *markdown) table(n *table.Table, first, hang []span) {
	var rows [][]span
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []span
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			var text strings.Builder
			for _, s := range m.inline(cell, "") {
				text.WriteString(s.text)
			}
			style := ""
			if _, header := row.(*table.TableHeader); header {
				style = "1"
			}
			cells = append(cells, span{style, visible.Line(text.String())})
		}
		rows = append(rows, cells)
	}
	for _, line := range tableLines(rows, m.width-columnsOfAll(hang)) {
		m.lines = append(m.lines, append(with(first, plain("")), line...))
		first = hang
	}
}

// inline returns the text of a node in a style.
func (m *markdown) inline(parent ast.Node, style string) []span {
	var spans []span
	add := func(style, text string) { spans = append(spans, span{style, visible.Text(text)}) }
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
func link(label []span, to, title []byte) []span {
	var text strings.Builder
	for _, s := range label {
		text.WriteString(s.text)
	}
	address := visible.Line(string(to))
	if len(title) > 0 {
		address += " " + strconv.Quote(string(title))
	}
	if text.String() == address {
		return label
	}
	return append(label, dim(" ("+address+")"))
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
