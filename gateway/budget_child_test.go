package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// query begins a query of m, and returns its end and the error with which the meter has ended it.
func query(m *Meter) (end func() Used, failed func() error) {
	var err error
	end = m.Query(func(e error) { err = e }, nil)
	return end, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return err
	}
}

func usesTokens(n int64) meter.Usage { return meter.Usage{Usage: runnerscripts.Usage{OutputTokens: n}} }

// spent returns whether err is of a limit.
func spent(err error, scope, limit string) bool {
	over, ok := errors.AsType[*BudgetError](err)
	return ok && over.Scope == scope && over.Limit == limit
}

func TestAChildUsesTheBudgetOfItsParent(t *testing.T) {
	parent := NewMeter(Budget{Session: Limits{Tokens: 100, Requests: 3}}, Used{})
	child := parent.NewChild(Budget{}, Used{})
	if !child.Metered() || !child.countsTokens() {
		t.Error("the child needs no gateway")
	}
	endParent, failed := query(parent)
	endChild, childFailed := query(child)
	if err := child.admit(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	child.count("m", usesTokens(60))
	if got := parent.Used(); got.OutputTokens != 60 || got.Requests != 1 {
		t.Errorf("the parent has used %+v", got)
	}
	parent.count("m", usesTokens(60))
	err := child.admit(t.Context(), "m")
	if !spent(err, "session", "tokens") || !errors.Is(failed(), err) || !errors.Is(childFailed(), err) {
		t.Errorf("the call is %v, the parent's query %v and the child's %v", err, failed(), childFailed())
	}
	if got := child.Used(); got.Requests != 1 || got.OutputTokens != 60 {
		t.Errorf("the child has used %+v", got)
	}
	if used := endChild(); used.OutputTokens != 60 {
		t.Errorf("its query %+v", used)
	}
	if used := endParent(); used.OutputTokens != 60 || used.Requests != 0 {
		t.Errorf("the parent's query has used %+v beside its child", used)
	}
}

func TestALimitOfAChildDoesNotEndItsParent(t *testing.T) {
	parent := NewMeter(Budget{Session: Limits{Requests: 9}}, Used{})
	child := parent.NewChild(Budget{Query: Limits{Requests: 1}}, Used{})
	end, failed := query(parent)
	defer end()
	endChild, _ := query(child)
	defer endChild()
	if err := child.admit(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	if err := child.admit(t.Context(), "m"); !spent(err, "query", "requests") || failed() != nil {
		t.Errorf("the call is %v, and the parent's query %v", err, failed())
	}
	if got := parent.Used().Requests; got != 1 {
		t.Errorf("a refused call counts: %d", got)
	}
}

// TestAChildThatWorksAlone has a child whose parent has no query: limits of queries of the parent do not
// apply, those of its session do.
func TestAChildThatWorksAlone(t *testing.T) {
	parent := NewMeter(Budget{Query: Limits{Requests: 1}, Session: Limits{Requests: 3}}, Used{})
	child := parent.NewChild(Budget{}, Used{})
	end, _ := query(parent)
	if err := parent.admit(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	end()
	endChild, failed := query(child)
	defer endChild()
	for i, want := range []bool{true, true, false} {
		if err := child.admit(t.Context(), "m"); (err == nil) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if !spent(failed(), "session", "requests") {
		t.Errorf("the query is %v", failed())
	}
}

func TestTimeOfQueriesAtOnceCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := NewMeter(Budget{Session: Limits{Time: 10 * time.Second}}, Used{})
		one, two := parent.NewChild(Budget{}, Used{}), parent.NewChild(Budget{}, Used{})
		end, _ := query(parent)
		endOne, _ := query(one)
		time.Sleep(3 * time.Second)
		endTwo, failed := query(two)
		time.Sleep(3 * time.Second)
		end()
		endOne()
		if got := parent.Used().Time; got != 6*time.Second {
			t.Errorf("the session has worked for %v", got)
		}
		if got := one.Used().Time; got != 6*time.Second {
			t.Errorf("the child has worked for %v", got)
		}
		time.Sleep(3 * time.Second)
		if err := failed(); err != nil {
			t.Errorf("after 9 s: %v", err)
		}
		time.Sleep(1*time.Second + time.Millisecond)
		if err := failed(); !spent(err, "session", "time") {
			t.Errorf("after 10 s: %v", err)
		}
		endTwo()
		late, failed := query(one)
		defer late()
		time.Sleep(time.Millisecond)
		if err := failed(); !spent(err, "session", "time") {
			t.Errorf("without time: %v", err)
		}
	})
}

func TestAParentIsAskedForItsChild(t *testing.T) {
	parent := NewMeter(Budget{Session: Limits{Requests: 1}, Ask: true}, Used{})
	asked := 0
	end := parent.Query(func(error) {}, func(*BudgetError) bool { asked++; return true })
	defer end()
	child := parent.NewChild(Budget{}, Used{})
	endChild, _ := query(child)
	defer endChild()
	for range 2 {
		if err := child.admit(context.Background(), "m"); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestAChildsOwnFailureIsItsOwn has a child whose model has no price, which the parent's budget needs, and one whose call is
// cancelled while the parent's user is asked.
func TestAChildsOwnFailureIsItsOwn(t *testing.T) {
	parent := NewMeter(Budget{Session: Limits{USD: 1}}, Used{})
	child := parent.NewChild(Budget{}, Used{})
	end, failed := query(parent)
	defer end()
	endChild, childFailed := query(child)
	defer endChild()
	if err := child.admit(t.Context(), "a model without a price"); !errors.Is(err, ErrConfig) || failed() != nil || !errors.Is(childFailed(), ErrConfig) {
		t.Errorf("the call is %v, the parent's query %v and the child's %v", err, failed(), childFailed())
	}

	asked, answer := make(chan struct{}), make(chan struct{})
	parent = NewMeter(Budget{Session: Limits{Requests: 1}, Ask: true}, Used{Requests: 1})
	child = parent.NewChild(Budget{}, Used{})
	end = parent.Query(func(error) {}, func(*BudgetError) bool { close(asked); <-answer; return true })
	defer end()
	defer close(answer)
	endOther, otherFailed := query(child)
	defer endOther()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if err := child.admit(ctx, "m"); !errors.Is(err, context.Canceled) || otherFailed() != nil {
		t.Errorf("the cancelled call is %v, and the child's query %v", err, otherFailed())
	}
}
