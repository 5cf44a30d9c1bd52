package agent

import (
	"regexp"
	"sync"
	"testing"
)

func TestAPatternIsCompiledOnceWhenItIsNeeded(t *testing.T) {
	p := Pattern{Expr: `^(a+)b$`}
	if p.compiled != nil {
		t.Error("it is compiled before anybody needs it")
	}
	var got [8]*regexp.Regexp
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = p.Get() })
	}
	all.Wait()
	for _, re := range got {
		if re != got[0] || !re.MatchString("aab") || re.MatchString("b") {
			t.Errorf("got %v", re)
		}
	}
}
