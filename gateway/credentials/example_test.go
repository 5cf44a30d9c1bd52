package credentials_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/gateway/credentials"
)

// This example stores a secret, lists it by its name and reads it.
func Example() {
	dir, err := os.MkdirTemp("", "credentials")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv("XDG_STATE_HOME", dir) // real programs do not change these
	os.Setenv("XDG_CONFIG_HOME", dir)
	os.Setenv("HOME", dir)

	ctx := context.Background()
	s, err := credentials.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Init(ctx); err != nil { // creates the key if there is none
		log.Fatal(err)
	}
	if err := s.Set(ctx, "anthropic", "sk-ant-example"); err != nil {
		log.Fatal(err)
	}
	list, err := s.List()
	if err != nil {
		log.Fatal(err)
	}
	for _, entry := range list {
		fmt.Println(entry.Name)
	}
	secret, err := s.Get("anthropic")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(secret), "bytes")
	// Output:
	// anthropic
	// 14 bytes
}
