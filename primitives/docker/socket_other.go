//go:build !linux

package docker

import (
	"errors"

	"github.com/docker/docker/client"
)

// Only Linux runs containers on the kernel of their host.

func linkFolder(*client.Client, string) string { return "" }

func holdLink(*client.Client, string, Config) (folder string, fresh bool, unlock func(), ok bool) {
	return "", false, nil, false
}

func listen(string) (rendezvous, error) { return rendezvous{}, errors.ErrUnsupported }

func dropLink(*client.Client, string) error { return nil }

func dropLinks(*client.Client, func(string) bool) error { return nil }
