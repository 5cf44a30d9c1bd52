package docker

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestWhetherAnEngineHasAnImage(t *testing.T) {
	var p Provider
	if has, err := p.HasImage(t.Context(), testdocker.Busybox(t)); !has || err != nil {
		t.Errorf("an image that is there: %t, %v", has, err)
	}
	if has, err := p.HasImage(t.Context(), "agentenv.example/nosuch:1"); has || err != nil {
		t.Errorf("one that is not: %t, %v", has, err)
	}
	if has, err := (Provider{Host: "unix:///nosuch/docker.sock"}).HasImage(t.Context(), "busybox"); has || !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("without an engine: %t, %v", has, err)
	}
}
