package runnerscripts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// declaredTypes returns the constants of type EventType that event.go declares.
func declaredTypes(t *testing.T) []EventType {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var types []EventType
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "EventType" {
			s, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, EventType(s))
		}
		return true
	})
	slices.Sort(types)
	return types
}

func TestTableHasEveryDeclaredType(t *testing.T) {
	declared := declaredTypes(t)
	if len(declared) < 30 || !slices.Equal(declared, EventTypes()) {
		t.Errorf("event.go declares\n%q\nthe table has\n%q", declared, EventTypes())
	}
	for typ, kind := range eventKinds {
		if kind.typ != typ || kind.payload == nil {
			t.Errorf("the row of %s is for %s with payload %v", typ, kind.typ, kind.payload)
		}
	}
	if PayloadType("no such type") != nil {
		t.Error("an unknown type has a payload type")
	}
}
