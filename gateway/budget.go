package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/gateway/internal/prices"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Price is the cost of a million tokens of a model, in US dollars.
type Price = prices.Price

// Limits bound the usage. A zero field means no limit.
type Limits struct {
	// USD is in US dollars, at the prices of the [Budget].
	USD float64 `json:"usd,omitempty"`
	// Tokens bounds the tokens that models read and write, including cached ones.
	Tokens int64 `json:"tokens,omitempty"`
	// Requests bounds the number of model calls.
	Requests int64 `json:"requests,omitempty"`
	// Time bounds the running time of queries.
	Time time.Duration `json:"time,omitempty"`
}

// Budget bounds the usage of an agent. The gateway refuses calls after the call that used up a
// limit. So the usage can exceed the limit by that call and the calls running at the same time.
type Budget struct {
	// Query bounds each query, Session all queries together.
	Query   Limits `json:"query,omitzero"`
	Session Limits `json:"session,omitzero"`
	// Ask holds the next call when a limit other than time is used up, until the user answers:
	// either the agent may use the same amount again, or the query ends. If false, the query
	// ends at once.
	Ask bool `json:"ask,omitempty"`
	// Prices adds to or overrides the price list of this package.
	Prices map[string]Price `json:"prices,omitempty"`
}

// Used is the usage of queries, as counted at the gateway.
type Used struct {
	runnerscripts.Usage               // CostUSD is at the prices of the [Budget]; models without a price cost nothing
	Requests            int64         `json:"requests,omitempty"` // model calls
	Time                time.Duration `json:"time,omitempty"`
}

// Add returns the sum.
func (u Used) Add(o Used) Used {
	return Used{Usage: u.Usage.Add(o.Usage), Requests: u.Requests + o.Requests, Time: u.Time + o.Time}
}

// tokens returns the count that [Limits.Tokens] bounds.
func (u Used) tokens() int64 { return u.TotalInput() + u.OutputTokens }

// BudgetError is the error for a limit that is used up.
type BudgetError struct {
	Scope string // "query" or "session"
	Limit string // the key of the limit: "usd", "tokens", "requests" or "time"
	Most  string // the configured limit, with its unit; a user may have allowed it several times
	Used  Used   // within the scope
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the %s's budget of %s is used up; to allow more, raise budget.%[1]s.%[3]s", e.Scope, e.Most, e.Limit)
}

// over returns a [*BudgetError] for the limit that is used up, or nil if none is. allowed has
// the extended limits that the user has allowed.
func (l Limits) over(u Used, scope string, allowed Limits) error {
	fail := func(limit, most string) error { return &BudgetError{Scope: scope, Limit: limit, Most: most, Used: u} }
	switch {
	case l.USD > 0 && u.CostUSD >= max(l.USD, allowed.USD):
		return fail("usd", fmt.Sprintf("%.4g USD", l.USD))
	case l.Tokens > 0 && u.tokens() >= max(l.Tokens, allowed.Tokens):
		return fail("tokens", counted(l.Tokens, "token"))
	case l.Requests > 0 && u.Requests >= max(l.Requests, allowed.Requests):
		return fail("requests", counted(l.Requests, "request"))
	case l.Time > 0 && u.Time >= l.Time:
		return fail("time", l.Time.String())
	}
	return nil
}

func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// again returns allowed, with one field extended by the amount of the limit l.
func (l Limits) again(u Used, limit string, allowed Limits) Limits {
	switch limit {
	case "usd":
		allowed.USD = u.CostUSD + l.USD
	case "tokens":
		allowed.Tokens = u.tokens() + l.Tokens
	case "requests":
		allowed.Requests = u.Requests + l.Requests
	}
	return allowed
}

// Check returns an [ErrConfig] if a limit or price is invalid.
func (b Budget) Check() error {
	for scope, l := range map[string]Limits{"query": b.Query, "session": b.Session} {
		if l.USD < 0 || math.IsNaN(l.USD) || math.IsInf(l.USD, 0) || l.Tokens < 0 || l.Requests < 0 || l.Time < 0 {
			return fmt.Errorf("%w: budget.%s: a limit is negative or no number; leave it out for none", ErrConfig, scope)
		}
	}
	for model, p := range b.Prices {
		for _, usd := range []float64{p.Input, p.Output, p.CacheRead, p.CacheWrite, p.CacheWriteHour} {
			if usd < 0 || math.IsNaN(usd) || math.IsInf(usd, 0) {
				return fmt.Errorf("%w: budget.prices.%s: a price is negative or no number; give US dollars for a million tokens", ErrConfig, model)
			}
		}
	}
	return nil
}

// Metered reports whether a limit needs a gateway. A time limit does not.
func (b Budget) Metered() bool {
	for _, l := range []Limits{b.Query, b.Session} {
		if l.USD > 0 || l.Tokens > 0 || l.Requests > 0 {
			return true
		}
	}
	return false
}

// countsTokens reports whether a limit depends on the tokens of calls.
func (b Budget) countsTokens() bool {
	return b.Query.USD > 0 || b.Query.Tokens > 0 || b.Session.USD > 0 || b.Session.Tokens > 0
}

// Meter counts the usage of a session and ends queries that exceed the budget. Its methods may
// be called from several goroutines.
type Meter struct {
	budget Budget

	mu             sync.Mutex
	query, session Used
	began          time.Time   // of the running query; zero for none
	exceeded       func(error) // ends the running query
	more           func(*BudgetError) bool
	asked          chan struct{} // closed when more has returned; nil while more is not running

	allowedQuery, allowedSession Limits // see Limits.over
}

// NewMeter returns the meter of a session with the given earlier usage.
func NewMeter(budget Budget, used Used) *Meter {
	return &Meter{budget: budget, session: used}
}

// Query starts counting a query from zero. When a limit is used up, the meter calls exceeded
// once, with a [*BudgetError], or with an [ErrConfig] for a model without a price. It does so
// before the agent gets the answer to its call, so exceeded must return soon and must not call
// the meter. The returned function ends the query and returns its usage.
//
// With [Budget.Ask], the meter first calls more, one call at a time, on its own goroutine. If
// more returns true, the query may use the amount of the limit again. more must return soon
// after the query ends. The meter does not ask about a time limit.
func (m *Meter) Query(exceeded func(error), more func(*BudgetError) bool) (end func() Used) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.query, m.allowedQuery, m.began, m.exceeded = Used{}, Limits{}, time.Now(), exceeded
	if m.budget.Ask {
		m.more = more
	}
	var timer *time.Timer
	if left, limited := m.timeLeftLocked(); limited {
		timer = time.AfterFunc(left, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.failLocked(m.overLocked())
		})
	}
	return sync.OnceValue(func() Used {
		if timer != nil {
			timer.Stop()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.query, m.session = m.soFarLocked()
		m.began, m.exceeded, m.more, m.asked = time.Time{}, nil, nil, nil
		return m.query
	})
}

// timeLeftLocked returns how long the new query may take. The caller holds m.mu.
func (m *Meter) timeLeftLocked() (left time.Duration, limited bool) {
	left = math.MaxInt64
	if t := m.budget.Query.Time; t > 0 {
		left = t
	}
	if t := m.budget.Session.Time; t > 0 {
		left = min(left, max(0, t-m.session.Time))
	}
	return left, left < math.MaxInt64
}

// soFarLocked returns the usage of the query and the session, including the elapsed time. The caller
// holds m.mu.
func (m *Meter) soFarLocked() (query, session Used) {
	query, session = m.query, m.session
	if !m.began.IsZero() {
		took := time.Since(m.began)
		query.Time, session.Time = took, session.Time+took
	}
	return query, session
}

// overLocked returns the error for the limit that is used up; nil if none is. The caller holds m.mu.
func (m *Meter) overLocked() error {
	query, session := m.soFarLocked()
	if err := m.budget.Query.over(query, "query", m.allowedQuery); err != nil {
		return err
	}
	return m.budget.Session.over(session, "session", m.allowedSession)
}

// failLocked ends the query. The caller holds m.mu.
func (m *Meter) failLocked(err error) {
	if m.exceeded != nil && err != nil {
		m.exceeded(err)
		m.exceeded = nil
	}
}

// Used returns the usage of the session.
func (m *Meter) Used() Used {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, session := m.soFarLocked()
	return session
}

// admit counts a model call, or returns why it is refused. While the user is asked to extend a
// limit, it waits for the answer.
func (m *Meter) admit(ctx context.Context, model string) error {
	for {
		asked, err := m.tryAdmit(model)
		if asked == nil {
			return err
		}
		select {
		case <-asked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask asks the user to extend a limit, and closes asked.
func (m *Meter) ask(limit *BudgetError, more func(*BudgetError) bool, asked chan struct{}) {
	defer close(asked)
	allowed := more(limit)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.asked != asked: // the query has ended
		return
	case !allowed:
		m.more = nil
		m.failLocked(limit)
	case limit.Scope == "query":
		m.allowedQuery = m.budget.Query.again(m.query, limit.Limit, m.allowedQuery)
	default:
		m.allowedSession = m.budget.Session.again(m.session, limit.Limit, m.allowedSession)
	}
	m.asked = nil
}

// tryAdmit is like admit, but instead of waiting returns a channel that is closed when the user
// has answered.
func (m *Meter) tryAdmit(model string) (asked <-chan struct{}, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.overLocked()
	if limit, ok := errors.AsType[*BudgetError](err); ok && m.more != nil && limit.Limit != "time" {
		if m.asked == nil {
			m.asked = make(chan struct{})
			go m.ask(limit, m.more, m.asked)
		}
		return m.asked, nil
	}
	if _, priced := prices.Of(m.budget.Prices, model); err == nil && !priced && (m.budget.Query.USD > 0 || m.budget.Session.USD > 0) {
		err = fmt.Errorf("%w: the model %q has no known price, and the budget is in US dollars; give budget.prices, as {%q: {input: 3, output: 15}}", ErrConfig, model, model)
	}
	if err != nil {
		m.failLocked(err)
		return nil, err
	}
	m.query.Requests++
	m.session.Requests++
	return nil, nil
}

// count adds the usage of a call.
func (m *Meter) count(model string, u meter.Usage) {
	for _, name := range []string{model, u.Model} {
		if p, ok := prices.Of(m.budget.Prices, name); ok {
			u.CostUSD = p.Cost(u.Usage, u.HourWriteTokens)
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
	m.failLocked(err)
}

// isBudget reports whether err wraps a [*BudgetError].
func isBudget(err error) bool {
	_, ok := errors.AsType[*BudgetError](err)
	return ok
}
