package primitives_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// An HTTP client of the host reaches a server in the sandbox, without a network or a published
// port. In this example the server runs in the host program instead.
func ExampleDial() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "you asked for %s", r.URL.Path)
	}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return primitives.Dial(ctx, box, network, address)
		},
		DisableKeepAlives: true,
	}}
	res, err := client.Get(server.URL + "/page")
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	io.Copy(os.Stdout, res.Body)
	// Output: you asked for /page
}

// Programs in the sandbox connect to the host program, which accepts on the listener.
func ExampleListen() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	ln, err := primitives.Listen(ctx, box, "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "hello from the host")
	}()
	script := `exec 3<>"/dev/tcp/127.0.0.1/$0"; cat <&3`
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"bash", "-c", script, port}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(res.Stdout))
	// Output: hello from the host
}
