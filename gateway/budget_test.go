package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// metered serves a gateway with a meter to an API. Unless answer is set, each answer reports
// 1000 tokens of input and 100 of output. call sends one model call.
func metered(t *testing.T, cfg Config, answer http.HandlerFunc) (m *Meter, call func(model string) (int, string)) {
	t.Helper()
	if answer == nil {
		answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"model":"of-the-answer","usage":{"input_tokens":1000,"output_tokens":100}}`)
		}
	}
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	cfg.Upstreams = map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: realKey}}
	_, at := serveConfig(t, cfg)
	return cfg.Meter, func(model string) (int, string) {
		body := fmt.Sprintf(`{"model":%q,"messages":[]}`, model)
		return ask(t, request(t, "POST", at.URL+"/anthropic/v1/messages", body, "X-Api-Key", at.Token))
	}
}

func TestTheCallAfterTheLimitIsRefused(t *testing.T) {
	prices := map[string]Price{"m": {Input: 1000, Output: 10000}} // 2 USD a call
	for _, c := range []struct {
		name   string
		budget Budget
		passed int // calls of the first query; second has those of the second
		second int
		limit  string
	}{
		{"requests", Budget{Query: Limits{Requests: 2}}, 2, 2, "query requests 2 requests"},
		{"tokens", Budget{Query: Limits{Tokens: 2500}}, 3, 3, "query tokens 2500 tokens"},
		{"usd", Budget{Query: Limits{USD: 4}, Prices: prices}, 2, 2, "query usd 4 USD"},
		{"a fraction of a cent", Budget{Query: Limits{USD: 0.000001}, Prices: prices}, 1, 1, "query usd 0.000001 USD"},
		{"session", Budget{Session: Limits{Requests: 3}, Query: Limits{Requests: 2}}, 2, 1, "session requests 3 requests"},
		{"session usd", Budget{Session: Limits{USD: 5}, Prices: prices}, 3, 0, "session usd 5 USD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			meter, call := metered(t, Config{Meter: NewMeter(c.budget, Used{})}, nil)
			var last *BudgetError
			for _, want := range []int{c.passed, c.second} {
				ended := make(chan error, 10)
				end := meter.Query(func(err error) { ended <- err }, nil)
				for n := range want {
					if status, body := call("m"); status != http.StatusOK {
						t.Fatalf("call %d: %d %s", n, status, body)
					}
				}
				for range 2 {
					if status, body := call("m"); status != http.StatusForbidden || !strings.Contains(body, "budget") {
						t.Fatalf("the call over the limit: %d %s", status, body)
					}
				}
				if !errors.As(<-ended, &last) || len(ended) > 0 {
					t.Fatalf("it was ended by %v, and %d times more", last, len(ended))
				}
				if used := end(); used.Requests != int64(want) || used.InputTokens != 1000*int64(want) || used.OutputTokens != 100*int64(want) || used.Time <= 0 {
					t.Errorf("the query has used %+v", used)
				}
			}
			if got := last.Scope + " " + last.Limit + " " + last.Most; got != c.limit {
				t.Errorf("the limit was %q", got)
			}
			if used := meter.Used(); used.Requests != int64(c.passed+c.second) || c.budget.Prices != nil && math.Abs(used.CostUSD-2*float64(used.Requests)) > 1e-9 {
				t.Errorf("the session has used %+v", used)
			}
		})
	}
}

// TestTheUserMayAllowMore checks that calls over the limit wait for the user, who is asked
// once.
func TestTheUserMayAllowMore(t *testing.T) {
	for _, c := range []struct {
		budget Budget
		limit  string
	}{
		{Budget{Query: Limits{Requests: 2}}, "query requests"},
		{Budget{Session: Limits{Tokens: 1500}}, "session tokens"},
		{Budget{Query: Limits{USD: 3}, Prices: map[string]Price{"m": {Input: 1000, Output: 10000}}}, "query usd"},
	} {
		t.Run(c.limit, func(t *testing.T) {
			c.budget.Ask = true
			meter, call := metered(t, Config{Meter: NewMeter(c.budget, Used{})}, nil)
			questions, answers, ended := make(chan *BudgetError), make(chan bool), make(chan error, 1)
			end := meter.Query(func(err error) { ended <- err }, func(limit *BudgetError) bool {
				questions <- limit
				return <-answers
			})
			for range 2 { // each limit allows two calls
				if status, body := call("m"); status != http.StatusOK {
					t.Fatal(status, body)
				}
			}
			for _, allowed := range []bool{true, false} {
				statuses := make(chan int)
				for range 2 {
					go func() {
						status, _ := call("m")
						statuses <- status
					}()
				}
				if q := <-questions; q.Scope+" "+q.Limit != c.limit {
					t.Errorf("asked for %s %s", q.Scope, q.Limit)
				}
				answers <- allowed
				want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[allowed]
				for range 2 {
					if status := <-statuses; status != want {
						t.Errorf("allowed %v: a call got %d", allowed, status)
					}
				}
			}
			if limit, ok := errors.AsType[*BudgetError](<-ended); !ok || limit.Scope+" "+limit.Limit != c.limit {
				t.Errorf("it was ended by %v", limit)
			}
			end()
		})
	}
}

// TestACallThatWaitsForTheUserEndsWithTheQuery checks that a waiting call ends with the query,
// and when its agent disconnects.
func TestACallThatWaitsForTheUserEndsWithTheQuery(t *testing.T) {
	meter := NewMeter(Budget{Query: Limits{Requests: 1}, Ask: true}, Used{Requests: 1})
	asked, left := make(chan struct{}), make(chan struct{})
	end := meter.Query(nil, func(*BudgetError) bool {
		close(asked)
		<-left
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := meter.admit(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 2)
	go func() { waiting <- meter.admit(ctx, "m") }()
	<-asked
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() { waiting <- meter.admit(t.Context(), "m") }()
	end()
	close(left)
	if err := <-waiting; !isBudget(err) { // the answer came too late
		t.Error(err)
	}
}

func TestEarlierUsageCounts(t *testing.T) {
	_, call := metered(t, Config{Meter: NewMeter(Budget{Session: Limits{Requests: 3}}, Used{Requests: 2})}, nil)
	if status, body := call("m"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if status, body := call("m"); status != http.StatusForbidden {
		t.Fatal(status, body)
	}
}

func TestMoneyNeedsAPrice(t *testing.T) {
	meter, call := metered(t, Config{Meter: NewMeter(Budget{Query: Limits{USD: 4}}, Used{})}, nil)
	ended := make(chan error, 1)
	defer meter.Query(func(err error) { ended <- err }, nil)()
	status, body := call("nameless-1")
	if status != http.StatusForbidden || !strings.Contains(body, "nameless-1") || !strings.Contains(body, "budget.prices") {
		t.Errorf("%d %s", status, body)
	}
	if err := <-ended; !errors.Is(err, ErrConfig) {
		t.Errorf("the query was ended by %v", err)
	}
}

func TestTimeEndsAQuery(t *testing.T) {
	for _, budget := range []Budget{{Query: Limits{Time: time.Millisecond}}, {Session: Limits{Time: time.Hour + time.Millisecond}}} {
		ended := make(chan error, 1)
		meter := NewMeter(budget, Used{Time: time.Hour})
		end := meter.Query(func(err error) { ended <- err }, nil)
		if limit, ok := errors.AsType[*BudgetError](<-ended); !ok || limit.Limit != "time" {
			t.Errorf("it was ended by %v", limit)
		}
		if end().Time < time.Millisecond || end().Time > time.Hour {
			t.Errorf("the query has taken %v", end().Time)
		}
	}
}

// TestUsageThatNoAnswerTellsIsEstimated checks that an agent that does not request its usage
// cannot evade a budget.
func TestUsageThatNoAnswerTellsIsEstimated(t *testing.T) {
	meter, call := metered(t, Config{Meter: NewMeter(Budget{}, Used{})}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("word", 50))
	})
	if status, body := call("m"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if used := meter.Used(); used.OutputTokens < 50 || used.InputTokens < 5 || used.InputTokens > 20 {
		t.Errorf("%+v", used)
	}
}

func TestAnotherModelAnswers(t *testing.T) {
	for first, want := range map[int]string{http.StatusTooManyRequests: "second", http.StatusBadGateway: "second", http.StatusBadRequest: "first"} {
		meter, call := metered(t, Config{Meter: NewMeter(Budget{}, Used{}), Models: ModelPolicy{Fallback: map[string]string{"first": "second"}}},
			func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), `"first"`) {
					w.WriteHeader(first)
				}
				_, _ = w.Write(body)
			})
		if _, body := call("first"); body != `{"model":"`+want+`","messages":[]}` {
			t.Errorf("%d: %s", first, body)
		}
		if _, body := call("third"); !strings.Contains(body, "third") {
			t.Errorf("a model without a fallback: %s", body)
		}
		if n := meter.Used().Requests; n != int64(2+strings.Count(want, "second")) {
			t.Errorf("%d: %d requests are counted", first, n)
		}
	}
}

func TestInvalidBudgets(t *testing.T) {
	for _, b := range []Budget{
		{Query: Limits{USD: -1}},
		{Query: Limits{USD: math.NaN()}},
		{Session: Limits{Tokens: -1}},
		{Session: Limits{Requests: -1}},
		{Query: Limits{Time: -1}},
		{Prices: map[string]Price{"m": {Input: -1}}},
		{Prices: map[string]Price{"m": {Output: math.Inf(1)}}},
	} {
		if err := b.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", b, err)
		}
	}
	if err := (Budget{Query: Limits{USD: 1, Time: time.Second}}).Check(); err != nil {
		t.Error(err)
	}
}

func TestACompressedCallIsRefused(t *testing.T) {
	_, at := serveGateway(t, func(http.ResponseWriter, *http.Request) { t.Error("it was passed on") })
	status, body := ask(t, request(t, "POST", at.URL+"/anthropic/v1/messages", "\x1f\x8b", "X-Api-Key", at.Token, "Content-Encoding", "gzip"))
	if status != http.StatusForbidden || !strings.Contains(body, "compressed") {
		t.Errorf("%d %s", status, body)
	}
}

// An agent that is refused a call may fail at once. The cause must be known by then.
func TestAQueryEndsBeforeItsAgentIsAnswered(t *testing.T) {
	for range 100 {
		meter, ended := NewMeter(Budget{Query: Limits{Requests: 1}}, Used{}), make(chan error, 1)
		end := meter.Query(func(err error) { ended <- err }, nil)
		first, second := meter.admit(t.Context(), "m"), meter.admit(t.Context(), "m")
		if first != nil || !isBudget(second) || len(ended) != 1 {
			t.Fatalf("first call: %v, second call: %v, and %d of 1 causes are known", first, second, len(ended))
		}
		end()
	}
}
