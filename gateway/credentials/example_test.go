package credentials_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/gateway/credentials"
)

// A secret is stored, listed by its name and read.
func Example() {
	dir, err := os.MkdirTemp("", "credentials")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv("XDG_STATE_HOME", dir) // a program leaves these as they are
	os.Setenv("XDG_CONFIG_HOME", dir)
	os.Setenv("HOME", dir)

	ctx := context.Background()
	s, err := credentials.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Init(ctx); err != nil { // makes the key, once
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
