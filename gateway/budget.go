package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
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
	flag := ""
	switch {
	case e.Scope == "query" && e.Limit == "time":
		flag = ", or --timeout of envctl"
	case e.Scope == "session" && e.Limit != "time":
		flag = ", or --budget of envctl"
	}
	return fmt.Sprintf("the %s's budget of %s is used up; to allow more, raise budget.%[1]s.%[3]s%[4]s", e.Scope, e.Most, e.Limit, flag)
}

// over returns a [*BudgetError] for the limit that is used up, or nil if none is. allowed has
// the extended limits that the user has allowed.
func (l Limits) over(u Used, scope string, allowed Limits) error {
	fail := func(limit, most string) error { return &BudgetError{Scope: scope, Limit: limit, Most: most, Used: u} }
	switch {
	case l.USD > 0 && u.CostUSD >= max(l.USD, allowed.USD):
		return fail("usd", strconv.FormatFloat(l.USD, 'f', -1, 64)+" USD")
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
	parent *Meter // counts the same usage; nil for none

	// mu may be locked while that of a child is, never the other way around.
	mu             sync.Mutex
	query, session Used        // with what children have used
	own            Used        // the part of query that is no child's
	began          time.Time   // of the running query; zero for none
	running        int         // queries, with those of children
	since          time.Time   // when running became more than zero
	exceeded       func(error) // ends the running query
	more           func(*BudgetError) bool
	asked          chan struct{} // closed when more has returned; nil while more is not running

	allowedQuery, allowedSession Limits // see Limits.over
}

// NewMeter returns the meter of a session with the given earlier usage.
func NewMeter(budget Budget, used Used) *Meter {
	return &Meter{budget: budget, session: used}
}

// NewChild returns the meter of a session whose usage also counts as usage of m's session, and of its running query.
// The limits of m end the queries of both. Queries that run at the same time count their time once.
func (m *Meter) NewChild(budget Budget, used Used) *Meter {
	return &Meter{budget: budget, session: used, parent: m}
}

// Metered reports whether a limit of the meter, or of its parent, needs a gateway; see [Budget.Metered].
func (m *Meter) Metered() bool {
	return m != nil && (m.budget.Metered() || m.parent.Metered())
}

// countsTokens reports whether a limit depends on the tokens of calls.
func (m *Meter) countsTokens() bool {
	return m != nil && (m.budget.countsTokens() || m.parent.countsTokens())
}

// enterLocked counts the begin of a query, and leaveLocked its end. The caller holds m.mu.
func (m *Meter) enterLocked() {
	if m.parent != nil {
		m.parent.mu.Lock()
		defer m.parent.mu.Unlock()
		m.parent.enterLocked()
	}
	if m.running++; m.running == 1 {
		m.since = time.Now()
	}
}

func (m *Meter) leaveLocked() {
	if m.parent != nil {
		m.parent.mu.Lock()
		defer m.parent.mu.Unlock()
		m.parent.leaveLocked()
	}
	if m.running--; m.running == 0 {
		m.session.Time += time.Since(m.since)
	}
}

// Query starts counting a query from zero. When a limit is used up, the meter calls exceeded
// once, with a [*BudgetError], or with an [ErrConfig] for a model without a price. It does so
// before the agent gets the answer to its call, so exceeded must return soon and must not call
// the meter. The returned function ends the query and returns its usage, without that of children.
//
// With [Budget.Ask], the meter first calls more, one call at a time, on its own goroutine. If
// more returns true, the query may use the amount of the limit again. more must return soon
// after the query ends. The meter does not ask about a time limit.
func (m *Meter) Query(exceeded func(error), more func(*BudgetError) bool) (end func() Used) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left, limited := m.timeLeftLocked()
	m.enterLocked()
	m.query, m.own, m.allowedQuery, m.began, m.exceeded = Used{}, Used{}, Limits{}, time.Now(), exceeded
	if m.budget.Ask {
		m.more = more
	}
	var timer *time.Timer
	if limited {
		timer = time.AfterFunc(left, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.failLocked(m.timeOverLocked())
		})
	}
	return sync.OnceValue(func() Used {
		if timer != nil {
			timer.Stop()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.own.Time = time.Since(m.began)
		m.leaveLocked()
		m.began, m.exceeded, m.more, m.asked = time.Time{}, nil, nil, nil
		return m.own
	})
}

// timeLeftLocked returns how long the new query may take. The caller holds m.mu.
func (m *Meter) timeLeftLocked() (left time.Duration, limited bool) {
	left = m.sessionTimeLeftLocked()
	if t := m.budget.Query.Time; t > 0 {
		left = min(left, t)
	}
	return left, left < math.MaxInt64
}

// sessionTimeLeftLocked returns how long the session, and that of the parent, may still work. The caller holds m.mu.
func (m *Meter) sessionTimeLeftLocked() time.Duration {
	left := time.Duration(math.MaxInt64)
	if t := m.budget.Session.Time; t > 0 {
		_, session := m.soFarLocked()
		left = max(0, t-session.Time)
	}
	if m.parent != nil {
		m.parent.mu.Lock()
		defer m.parent.mu.Unlock()
		left = min(left, m.parent.sessionTimeLeftLocked())
	}
	return left
}

// soFarLocked returns the usage of the query and the session, including the elapsed time. The caller
// holds m.mu.
func (m *Meter) soFarLocked() (query, session Used) {
	query, session = m.query, m.session
	if !m.began.IsZero() {
		query.Time = time.Since(m.began)
	}
	if m.running > 0 {
		session.Time += time.Since(m.since)
	}
	return query, session
}

// overLocked returns the error for the limit that is used up; nil if none is. The caller holds m.mu.
func (m *Meter) overLocked() error {
	query, session := m.soFarLocked()
	if !m.began.IsZero() || m.running == 0 { // otherwise only children have queries
		if err := m.budget.Query.over(query, "query", m.allowedQuery); err != nil {
			return err
		}
	}
	return m.budget.Session.over(session, "session", m.allowedSession)
}

// timeOverLocked is overLocked with the sessions of the parents. The caller holds m.mu.
func (m *Meter) timeOverLocked() error {
	err := m.overLocked()
	if err != nil || m.parent == nil {
		return err
	}
	m.parent.mu.Lock()
	defer m.parent.mu.Unlock()
	return m.parent.timeOverLocked()
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
func (m *Meter) admit(ctx context.Context, model string) error { return m.admitCall(ctx, model, true) }

// admitCall is admit for a call of the session's own agent, or of a child.
func (m *Meter) admitCall(ctx context.Context, model string, own bool) error {
	for {
		asked, err := m.tryAdmit(model, own)
		if asked == nil && err == nil {
			return m.admitParent(ctx, model, own)
		}
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

// admitParent admits a call that m has counted to the parent, if there is one.
func (m *Meter) admitParent(ctx context.Context, model string, own bool) error {
	if m.parent == nil {
		return nil
	}
	err := m.parent.admitCall(ctx, model, false)
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.countLocked(Used{Requests: -1}, own)
		if ctx.Err() == nil { // else the agent has cancelled this call alone
			m.failLocked(err)
		}
	}
	return err
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

// tryAdmit is like admitCall, but instead of waiting returns a channel that is closed when the user
// has answered.
func (m *Meter) tryAdmit(model string, own bool) (asked <-chan struct{}, _ error) {
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
		err := fmt.Errorf("%w: the model %q has no known price, and the budget is in US dollars; give budget.prices, as {%q: {input: 3, output: 15}}", ErrConfig, model, model)
		if own { // a child that may not use its model is no failure of this query
			m.failLocked(err)
		}
		return nil, err
	}
	if err != nil {
		m.failLocked(err)
		return nil, err
	}
	m.countLocked(Used{Requests: 1}, own)
	return nil, nil
}

// count adds the usage of a call.
func (m *Meter) count(model string, u meter.Usage) { m.countCall(model, u, true) }

// countCall is count for a call of the session's own agent, or of a child.
func (m *Meter) countCall(model string, u meter.Usage, own bool) {
	if m.parent != nil {
		m.parent.countCall(model, u, false) // at its own prices
	}
	for _, name := range []string{model, u.Model} {
		if p, ok := prices.Of(m.budget.Prices, name); ok {
			u.CostUSD = p.Cost(u.Usage, u.HourWriteTokens)
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countLocked(Used{Usage: u.Usage}, own)
}

// countLocked adds usage of the session's own agent, or of a child. The caller holds m.mu.
func (m *Meter) countLocked(u Used, own bool) {
	m.query, m.session = m.query.Add(u), m.session.Add(u)
	if own {
		m.own = m.own.Add(u)
	}
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
