// Command llmapi serves the scripted model of package llmapi and prints its URL,
// for trying an agent by hand without a key:
//
//	go run ./internal/test/llmapi/cmd/llmapi
//	ANTHROPIC_BASE_URL=<that URL> ANTHROPIC_API_KEY=any claude -p "write-file `notes.txt`"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "llmapi:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	flags := flag.NewFlagSet("llmapi", flag.ContinueOnError)
	addr := flags.String("addr", "", "where to listen; empty means a free port of the loopback interface")
	hold := flags.Duration("hold", 2*time.Second, "how long slow-stream holds; 0 means for ever")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, err := llmapi.Start(ctx, llmapi.Config{Addr: *addr, ReleaseAfter: *hold})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, server.URL); err != nil {
		return errors.Join(err, server.Close())
	}
	<-ctx.Done()
	return server.Close()
}
