package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/policy"
)

// TestNoGatewayTakesTheMemoryOfAll checks that, however many gateways hold all that they can
// get, the next one gets some.
func TestNoGatewayTakesTheMemoryOfAll(t *testing.T) {
	of := newSharing(1000)
	all := map[*share]int64{}
	for range 5 {
		s, got := of.newShare(), int64(0)
		for _, ok := s.tryAcquire(1); ok; _, ok = s.tryAcquire(1) {
			got++
		}
		all[s] = got
		if got == 0 {
			t.Fatalf("the gateway number %d gets nothing: %v", len(all), all)
		}
		if len(all) == 1 && got != 500 {
			t.Errorf("one gateway gets %d of 1000", got)
		}
	}
	for s, got := range all {
		s.release(got)
	}
	if of.held != 0 {
		t.Errorf("%d bytes are held", of.held)
	}
}

func TestACallWaitsForMemoryAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(100).newShare()
		free, err := s.acquire(t.Context(), 50)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.acquire(t.Context(), 1); !errors.Is(err, errBusy) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.acquire(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		got := make(chan error)
		go func() {
			_, err := s.acquire(t.Context(), 50)
			got <- err
		}()
		synctest.Wait()
		free()
		free() // once counts
		if err := <-got; err != nil || s.own != 50 {
			t.Errorf("%v, it holds %d", err, s.own)
		}
	})
}

// TestLargeCallsAreReadByTurns checks that a gateway reads one large call at a time, so that its
// next one waits behind those of other gateways, and that small ones do not wait.
func TestLargeCallsAreReadByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := newSharing(1)
		of.reading = make(chan struct{}, 1)
		one, other := of.newShare(), of.newShare()
		more := make(chan struct{})
		var order []string
		read := func(s *share, name string, size int) {
			if err := s.read(t.Context(), size, func(context.Context) error {
				order = append(order, name)
				if size > quickBody {
					<-more
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		for _, name := range []string{"one 1", "one 2", "one 3"} {
			go read(one, name, quickBody+1)
			synctest.Wait()
		}
		go read(other, "other", quickBody+1)
		synctest.Wait()
		read(other, "small", quickBody)
		close(more)
		synctest.Wait()
		if got := strings.Join(order, ","); got != "one 1,small,other,one 2,one 3" {
			t.Error(got)
		}
		of.reading <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := one.read(ctx, quickBody+1, nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestARecordedCallIsReadByTurns checks that calls that are compared with a recording, which takes
// seconds, wait as well.
func TestARecordedCallIsReadByTurns(t *testing.T) {
	var recording bytes.Buffer
	if _, err := New(Config{Record: &recording}); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{"record": {Record: io.Discard}, "replay": {Replay: &recording}} {
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.share.reading <- struct{}{}
		g.send = func(*http.Request) (*http.Response, error) { return nil, errors.New("it was sent") }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		call := &modelCall{Passed: policy.Passed{Call: policy.Call{Body: make([]byte, quickBody+1)}}}
		r := httptest.NewRequestWithContext(context.WithValue(ctx, modelCallKey{}, call), "POST", "/v1/messages", nil)
		if _, err := g.sender("x", Upstream{API: "anthropic"}, &url.URL{})(r); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnAnswerHoldsNoCall checks that the memory of a call is free while its answer streams.
func TestAnAnswerHoldsNoCall(t *testing.T) {
	more := make(chan struct{})
	g, at := serveGateway(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "begun ")
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = io.WriteString(w, "and ended")
	})
	held := func() int64 {
		program.mu.Lock()
		defer program.mu.Unlock()
		return g.share.own
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(request(t, "POST", at.URL+"/anthropic/v1/messages", `{"messages":[]}`, "X-Api-Key", at.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 6)); err != nil || held() != 0 {
		t.Errorf("%d bytes are held: %v", held(), err)
	}
	close(more)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "and ended" {
		t.Errorf("%q %v", rest, err)
	}
}

// TestCloseEndsACallThatWaits has a large call that waits for its turn.
func TestCloseEndsACallThatWaits(t *testing.T) {
	g, err := New(Config{Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", Key: realKey}}})
	if err != nil {
		t.Fatal(err)
	}
	g.share.reading <- struct{}{}
	at, end := start(t, g)
	req := request(t, "POST", at.URL+"/anthropic/v1/messages", "", "X-Api-Key", at.Token)
	left, sent := io.Pipe()
	req.Body, req.ContentLength = left, quickBody+1
	req.Header.Set("Expect", "100-continue") // it sends the body when the gateway, which has admitted the call, reads it
	ended := make(chan error)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Hour}}
		resp, err := client.Do(req)
		if err == nil {
			err = fmt.Errorf("status %d", resp.StatusCode)
			_ = resp.Body.Close()
		}
		ended <- err
	}()
	if _, err := sent.Write(make([]byte, quickBody+1)); err != nil {
		t.Fatal(err)
	}
	if err := sent.Close(); err != nil { // the client reads on, to see that this is all
		t.Fatal(err)
	}
	end()
	if err := <-ended; err == nil || strings.Contains(err.Error(), "status") {
		t.Error(err)
	}
}

// blocked is a recording that does not end its last write.
type blocked struct {
	writes int
	begun  chan struct{}
	end    chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	if b.writes++; b.writes == 2 { // the header is written
		close(b.begun)
		<-b.end
	}
	return len(p), nil
}

func TestCloseDoesNotWaitForever(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer server.Close()
	record := &blocked{begun: make(chan struct{}), end: make(chan struct{})}
	g, err := New(Config{Record: record, Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: realKey}}})
	if err != nil {
		t.Fatal(err)
	}
	g.closeTimeout = time.Millisecond
	at := g.At(server.Listener.Addr())
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/anthropic/v1/messages", strings.NewReader("{}"))
		r.Header.Set("X-Api-Key", at.Token)
		g.server.Handler.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-record.begun
	if err := g.Close(); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Error(err)
	}
	close(record.end)
	<-handled
	g.closeTimeout = closeTimeout
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestSeveralMayCloseAtOnce(t *testing.T) {
	for range 20 {
		g, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		if wg.Wait(); t.Failed() {
			return
		}
	}
}

// A body that comes byte by byte would hold the memory of other sessions' calls.
func TestAWholeBodyHasALimit(t *testing.T) {
	var last time.Time
	b := &body{ReadCloser: io.NopCloser(iotest.OneByteReader(strings.NewReader("body"))), limit: time.Second, deadline: func(by time.Time) error {
		if !by.IsZero() {
			last = by
		}
		return nil
	}}
	before := time.Now()
	if _, err := b.Read(make([]byte, 1)); err != nil || last.Before(before.Add(b.limit)) {
		t.Errorf("%v after %v: %v", last, before, err)
	}
	first := last
	if _, err := io.Copy(io.Discard, b); err != nil || !last.Equal(first) {
		t.Errorf("%v, and %v after more: %v", first, last, err)
	}
	for _, size := range []int64{-1, 1, maxBody, maxBody + 1} {
		if limit := callTime(size); limit < 20*time.Second || limit >= time.Minute {
			t.Errorf("%d bytes: %v", size, limit)
		}
	}
}
