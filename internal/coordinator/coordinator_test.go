package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

const clientSecret = "the-client-secret-0123456789"

// serve serves a handler and returns its address and a transport to it.
func serve(t *testing.T, handler http.HandlerFunc) (*url.URL, *http.Transport) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	u, err := ParseURL(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	next := &http.Transport{}
	t.Cleanup(next.CloseIdleConnections)
	return u, next
}

// echo answers with the authorization of the request.
func echo(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, r.Header.Get("Authorization"))
}

func send(ctx context.Context, t *testing.T, tr http.RoundTripper, to string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer of-the-sandbox")
	resp, err := tr.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if r.Header.Get("Authorization") != "Bearer of-the-sandbox" {
		t.Error("the transport has changed the request")
	}
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

func TestTheKeyReplacesTheAuthorization(t *testing.T) {
	base, next := serve(t, echo)
	for key, want := range map[string]string{"the-key": "Bearer the-key", "": ""} {
		if got, err := send(t.Context(), t, NewTransport(base, Auth{Key: key}, next), base.String()+"/x"); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
}

// A request whose body cannot be sent again is refused, and the next one has the new key.
func TestABodyThatCannotBeSentAgain(t *testing.T) {
	base, next := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer new" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	tr := NewTransport(base, Auth{Key: "old", Renew: func(context.Context) (string, error) { return "new", nil }}, next)
	for _, want := range []int{http.StatusUnauthorized, http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base.String(), io.NopCloser(strings.NewReader("{}")))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("the answer is %s, want %d", resp.Status, want)
		}
	}
}

func TestTheKeyIsForTheCoordinatorAlone(t *testing.T) {
	elsewhere, _ := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request went elsewhere") })
	base, next := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.String(), http.StatusFound)
	})
	client := http.Client{Transport: NewTransport(base, Auth{Key: "the-key"}, next)}
	resp, err := client.Get(base.String())
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "is not the coordinator") || strings.Contains(err.Error(), "the-key") {
		t.Errorf("error %v", err)
	}
}

// issuer is a token endpoint. The tokens are numbered.
type issuer struct {
	issued  atomic.Int64
	expires int // seconds; zero leaves it out
	form    url.Values
	refuse  atomic.Bool
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	i.form = r.PostForm
	if id, secret, ok := r.BasicAuth(); ok {
		i.form.Set("client_id", id)
		i.form.Set("client_secret", secret)
	}
	w.Header().Set("Content-Type", "application/json")
	if i.refuse.Load() {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"no client has %s"}`, i.form.Get("client_secret"))
		return
	}
	answer := map[string]any{"access_token": fmt.Sprintf("token-%d", i.issued.Add(1)), "token_type": "Bearer"}
	if i.expires != 0 {
		answer["expires_in"] = i.expires
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// network has hosts that answer by themselves, so that in a bubble no time passes.
type network map[string]http.HandlerFunc

func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	n[r.URL.Host](w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// authorized returns a transport that gets its tokens from the issuer, and the coordinator's address.
func authorized(handler http.HandlerFunc) (*Transport, string) {
	base := &url.URL{Scheme: "http", Host: "coordinator.test"}
	auth := Auth{OAuth2: &OAuth2{TokenURL: "http://issuer.test/oauth/token", ClientID: "runner", ClientSecret: clientSecret, Audience: "https://api", Scopes: []string{"a", "b"}}}
	return NewTransport(base, auth, network{"issuer.test": handler, "coordinator.test": echo}), base.String()
}

func TestTheTokenIsThatOfTheClientCredentials(t *testing.T) {
	i := &issuer{expires: 3600}
	tr, base := authorized(i.ServeHTTP)
	for range 2 {
		if got, err := send(t.Context(), t, tr, base); err != nil || got != "Bearer token-1" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	for key, want := range map[string]string{"grant_type": "client_credentials", "audience": "https://api", "scope": "a b", "client_id": "runner", "client_secret": clientSecret} {
		if got := i.form.Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestATokenIsReplacedBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			life, early int // seconds
		}{{3600, 60}, {40, 20}, {0, 0}} {
			i := &issuer{expires: c.life}
			tr, base := authorized(i.ServeHTTP)
			if _, err := send(t.Context(), t, tr, base); err != nil {
				t.Fatal(err)
			}
			s := tr.token
			if c.life == 0 {
				if !s.refresh.IsZero() || !s.expires.IsZero() {
					t.Errorf("a token without an end has one: %v", s.expires)
				}
				continue
			}
			if early := s.expires.Sub(s.refresh).Round(time.Second); early != time.Duration(c.early)*time.Second {
				t.Errorf("a token of %d s is replaced %v early", c.life, early)
			}
			s.refresh = time.Now().Add(-time.Second)
			if got, err := send(t.Context(), t, tr, base); err != nil || got != "Bearer token-2" {
				t.Errorf("got %q, %v", got, err)
			}
			// An endpoint that fails does not matter until the end of the token.
			i.refuse.Store(true)
			s.refresh = time.Now().Add(-time.Second)
			if got, err := send(t.Context(), t, tr, base); err != nil || got != "Bearer token-2" {
				t.Errorf("got %q, %v", got, err)
			}
			s.expires = time.Now().Add(-time.Second)
			if got, err := send(t.Context(), t, tr, base); err == nil {
				t.Errorf("got %q", got)
			}
		}
	})
}

// A coordinator may refuse a token before its end, which may never come: another key signs its tokens now.
func TestATokenThatIsRefusedIsReplaced(t *testing.T) {
	i := &issuer{}
	endpoint, _ := serve(t, i.ServeHTTP)
	refuse := "Bearer token-1"
	base, next := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == refuse {
			w.WriteHeader(http.StatusUnauthorized)
		}
		echo(w, r)
	})
	tr := NewTransport(base, Auth{OAuth2: &OAuth2{TokenURL: endpoint.String(), ClientID: "runner", ClientSecret: clientSecret}}, next)
	for step, want := range []string{"Bearer token-1", "Bearer token-2", "Bearer token-2"} {
		if got, err := send(t.Context(), t, tr, base.String()); err != nil || got != want { // a new one would be refused, too
			t.Errorf("%d: got %q, %v", step, got, err)
		}
		if step == 0 {
			tr.token.fetched = tr.token.fetched.Add(-time.Minute)
		} else {
			refuse = "Bearer token-2"
		}
	}
	if n := i.issued.Load(); n != 2 {
		t.Errorf("%d tokens were issued", n)
	}
}

func TestOneCallerFetchesTheTokenForAll(t *testing.T) {
	i := &issuer{expires: 3600}
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	tr, base := authorized(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		<-goOn
		i.ServeHTTP(w, r)
	})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got, err := send(t.Context(), t, tr, base); err != nil || got != "Bearer token-1" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	<-asked
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if _, err := send(ctx, t, tr, base); !errors.Is(err, enough) {
		t.Errorf("a caller that does not wait: %v", err)
	}
	close(goOn)
	all.Wait()
	if n := i.issued.Load(); n != 1 {
		t.Errorf("%d tokens were issued", n)
	}
}

func TestAnOldTokenIsUsedWhileOneCallerReplacesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{expires: 3600}
		held := make(chan chan struct{}, 1)
		hold := false
		tr, base := authorized(func(w http.ResponseWriter, r *http.Request) {
			if hold {
				goOn := make(chan struct{})
				held <- goOn
				<-goOn
			}
			i.ServeHTTP(w, r)
		})
		if _, err := send(t.Context(), t, tr, base); err != nil {
			t.Fatal(err)
		}
		hold = true
		tr.token.refresh = time.Now().Add(-time.Second)
		replaced := make(chan string, 1)
		go func() {
			got, _ := send(t.Context(), t, tr, base)
			replaced <- got
		}()
		goOn := <-held
		if got, err := send(t.Context(), t, tr, base); err != nil || got != "Bearer token-1" {
			t.Errorf("the others got %q, %v", got, err)
		}
		close(goOn)
		if got := <-replaced; got != "Bearer token-2" {
			t.Errorf("the caller got %q", got)
		}
	})
}

// hanging is a network whose token endpoint answers once, with a token of an hour, and then no more.
type hanging struct{ asked int }

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	text := r.Header.Get("Authorization")
	if r.URL.Path == "/token" {
		if h.asked++; h.asked > 1 {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		text = `{"access_token":"first","expires_in":3600}`
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// A request waits for two seconds while it can use the old token, and for half a minute when it cannot.
func TestATokenEndpointThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &url.URL{Scheme: "http", Host: "coordinator.test"}
		tr := NewTransport(base, Auth{OAuth2: &OAuth2{TokenURL: "http://issuer.test/token", ClientID: "runner", ClientSecret: clientSecret}}, &hanging{})
		for _, c := range []struct {
			passes, waits time.Duration
			want          string
		}{{0, 0, "Bearer first"}, {3539 * time.Second, 0, "Bearer first"}, {time.Second, 2 * time.Second, "Bearer first"}, {time.Minute, 30 * time.Second, ""}} {
			time.Sleep(c.passes)
			began := time.Now()
			got, err := send(t.Context(), t, tr, base.String())
			if _, none := errors.AsType[*TokenError](err); time.Since(began) != c.waits || got != c.want || none != (c.want == "") {
				t.Errorf("after %v more: %q, %v, in %v", c.passes, got, err, time.Since(began))
			}
		}
	})
}

func TestWithoutATokenNothingIsSent(t *testing.T) {
	refusing := &issuer{}
	refusing.refuse.Store(true)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"refused": {refusing.ServeHTTP, "401 Unauthorized: invalid_client: no client has [redacted]"},
		"redirected": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
		}, "307"},
		"no JSON":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, clientSecret) }, ""},
		"two lines": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"access_token":"a\nb"}`) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tr, base := authorized(c.handler)
			_, err := send(t.Context(), t, tr, base)
			if _, ok := errors.AsType[*TokenError](err); !ok || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), clientSecret) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAddressesThatNoCoordinatorHas(t *testing.T) {
	for _, raw := range []string{"", "coordinator", "ftp://c", "http://user:secret@c", "http://c?x=1", "http://c#x", "http://"} {
		if u, err := ParseURL(raw); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v", raw, u, err)
		}
	}
}
