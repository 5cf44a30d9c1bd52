package main

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestDoctorSaysWhetherTheEngineHasTheImage(t *testing.T) {
	const absent = "agentenv.example/nosuch:1"
	for _, c := range []struct {
		image       string
		pull        docker.Pull
		status, fix string
	}{
		{testdocker.Busybox(t), "", statusOK, ""},
		{absent, "", statusMissing, "docker pull " + absent},
		{absent, docker.PullNever, statusMissing, "docker pull " + absent},
	} {
		var cfg environment.Config
		cfg.Sandbox.Image, cfg.Sandbox.Docker.Pull = c.image, c.pull
		rows := checkDocker(t.Context(), cfg, statusMissing)
		found := false
		for _, f := range rows {
			if f.Check != "docker image" {
				continue
			}
			found = true
			if f.Status != c.status || !strings.HasPrefix(f.Detail, c.image) || !strings.Contains(f.Fix, c.fix) ||
				strings.Contains(f.Detail, "fetch") != (c.status == statusMissing && c.pull == "") {
				t.Errorf("%s, pull %q: %+v", c.image, c.pull, f)
			}
		}
		if !found {
			t.Errorf("%s: no row says it: %+v", c.image, rows)
		}
	}
}
