package gateway

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/gateway/internal/prices"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Price is what a million tokens of a model cost, in US dollars.
type Price = prices.Price

// Limits bound what is used. A zero field is no limit.
type Limits struct {
	// USD is in US dollars, at the prices of the [Budget].
	USD float64 `json:"usd,omitempty"`
	// Tokens are those that models read and write, those from their caches too.
	Tokens int64 `json:"tokens,omitempty"`
	// Requests are calls of models.
	Requests int64 `json:"requests,omitempty"`
	// Time is how long queries run.
	Time time.Duration `json:"time,omitempty"`
}

// Budget bounds what an agent uses. The call of a model that follows the one that used up a
// limit is refused, so that more is used by what that one, and those beside it, need.
type Budget struct {
	// Query bounds each query, Session all of them together.
	Query   Limits `json:"query,omitzero"`
	Session Limits `json:"session,omitzero"`
	// Prices are those of models that the list of this package lacks, or has otherwise.
	Prices map[string]Price `json:"prices,omitempty"`
}

// Used is what queries have used, counted at the gateway.
type Used struct {
	runnerscripts.Usage               // CostUSD is at the prices of the [Budget]; models without a price cost nothing
	Requests            int64         `json:"requests,omitempty"` // calls of models
	Time                time.Duration `json:"time,omitempty"`
}

// Add returns the sum.
func (u Used) Add(o Used) Used {
	return Used{Usage: u.Usage.Add(o.Usage), Requests: u.Requests + o.Requests, Time: u.Time + o.Time}
}

// tokens is what [Limits.Tokens] counts.
func (u Used) tokens() int64 { return u.TotalInput() + u.OutputTokens }

// BudgetError says which limit is used up.
type BudgetError struct {
	Scope string // "query" or "session"
	Limit string // the key of the limit: "usd", "tokens", "requests" or "time"
	Most  string // the limit, with its unit
	Used  Used   // within the scope
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the %s's budget of %s is used up; to allow more, raise budget.%[1]s.%[3]s", e.Scope, e.Most, e.Limit)
}

// over returns the limit that is used up; nil for none.
func (l Limits) over(u Used, scope string) error {
	fail := func(limit, most string) error { return &BudgetError{Scope: scope, Limit: limit, Most: most, Used: u} }
	switch {
	case l.USD > 0 && u.CostUSD >= l.USD:
		return fail("usd", fmt.Sprintf("%.4g USD", l.USD))
	case l.Tokens > 0 && u.tokens() >= l.Tokens:
		return fail("tokens", fmt.Sprintf("%d tokens", l.Tokens))
	case l.Requests > 0 && u.Requests >= l.Requests:
		return fail("requests", fmt.Sprintf("%d requests", l.Requests))
	case l.Time > 0 && u.Time >= l.Time:
		return fail("time", l.Time.String())
	}
	return nil
}

// Check returns an [ErrConfig] for limits and prices that make no sense.
func (b Budget) Check() error {
	for scope, l := range map[string]Limits{"query": b.Query, "session": b.Session} {
		if l.USD < 0 || math.IsNaN(l.USD) || math.IsInf(l.USD, 0) || l.Tokens < 0 || l.Requests < 0 || l.Time < 0 {
			return fmt.Errorf("%w: budget.%s: a limit is negative or no number; leave it out for none", ErrConfig, scope)
		}
	}
	for model, p := range b.Prices {
		for _, usd := range []float64{p.Input, p.Output, p.CacheRead, p.CacheWrite} {
			if usd < 0 || math.IsNaN(usd) || math.IsInf(usd, 0) {
				return fmt.Errorf("%w: budget.prices.%s: a price is negative or no number; give US dollars for a million tokens", ErrConfig, model)
			}
		}
	}
	return nil
}

// Metered reports whether a limit needs a gateway; time needs none.
func (b Budget) Metered() bool {
	for _, l := range []Limits{b.Query, b.Session} {
		if l.USD > 0 || l.Tokens > 0 || l.Requests > 0 {
			return true
		}
	}
	return false
}

// Meter counts what a session uses and ends the queries that use more than its budget. Its
// methods may be called from several goroutines.
type Meter struct {
	budget Budget

	mu             sync.Mutex
	query, session Used
	began          time.Time   // of the running query; zero for none
	exceeded       func(error) // ends it
}

// NewMeter returns the meter of a session that has used something already.
func NewMeter(budget Budget, used Used) *Meter {
	return &Meter{budget: budget, session: used}
}

// Query counts from zero for a query. When a limit is used up, exceeded is called once with
// a [*BudgetError], or with an [ErrConfig] for a model without a price, from a goroutine of its own. The
// returned function ends the count and returns what the query has used.
func (m *Meter) Query(exceeded func(error)) (end func() Used) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.query, m.began, m.exceeded = Used{}, time.Now(), exceeded
	var timer *time.Timer
	if left, limited := m.timeLeft(); limited {
		timer = time.AfterFunc(left, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.fail(m.over())
		})
	}
	return sync.OnceValue(func() Used {
		if timer != nil {
			timer.Stop()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.query, m.session = m.soFar()
		m.began, m.exceeded = time.Time{}, nil
		return m.query
	})
}

// timeLeft returns how long the query that begins may take. m.mu is held.
func (m *Meter) timeLeft() (left time.Duration, limited bool) {
	left = math.MaxInt64
	if t := m.budget.Query.Time; t > 0 {
		left = t
	}
	if t := m.budget.Session.Time; t > 0 {
		left = min(left, max(0, t-m.session.Time))
	}
	return left, left < math.MaxInt64
}

// soFar returns what the query and the session have used, with the time until now. m.mu is held.
func (m *Meter) soFar() (query, session Used) {
	query, session = m.query, m.session
	if !m.began.IsZero() {
		took := time.Since(m.began)
		query.Time, session.Time = took, session.Time+took
	}
	return query, session
}

// over returns the limit that is used up; nil for none. m.mu is held.
func (m *Meter) over() error {
	query, session := m.soFar()
	if err := m.budget.Query.over(query, "query"); err != nil {
		return err
	}
	return m.budget.Session.over(session, "session")
}

// fail ends the query. m.mu is held.
func (m *Meter) fail(err error) {
	if m.exceeded != nil && err != nil {
		go m.exceeded(err)
		m.exceeded = nil
	}
}

// Used returns what the session has used.
func (m *Meter) Used() Used {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, session := m.soFar()
	return session
}

// admit counts a call of a model, or returns why it is not passed on.
func (m *Meter) admit(model string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.over()
	if _, priced := prices.Of(m.budget.Prices, model); err == nil && !priced && (m.budget.Query.USD > 0 || m.budget.Session.USD > 0) {
		err = fmt.Errorf("%w: the model %q has no known price, and the budget is in US dollars; give budget.prices, as {%q: {input: 3, output: 15}}", ErrConfig, model, model)
	}
	if err != nil {
		m.fail(err)
		return err
	}
	m.query.Requests++
	m.session.Requests++
	return nil
}

// count adds what a call has used.
func (m *Meter) count(model string, u meter.Usage) {
	for _, name := range []string{model, u.Model} {
		if p, ok := prices.Of(m.budget.Prices, name); ok {
			u.CostUSD = p.Cost(u.Usage)
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.query.Usage, m.session.Usage = m.query.Usage.Add(u.Usage), m.session.Usage.Add(u.Usage)
}

// end ends the running query.
func (m *Meter) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail(err)
}

// isBudget reports whether an error is that of a budget.
func isBudget(err error) bool {
	_, ok := errors.AsType[*BudgetError](err)
	return ok
}
