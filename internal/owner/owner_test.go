package owner_test

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/owner"
)

func TestAProgramThatRunsIsAliveAndOneThatHasEndedIsDead(t *testing.T) {
	self := owner.Self()
	if self.Boot == "" || self.Started == "" {
		if got := self.Liveness(); got != owner.Unknown {
			t.Errorf("where the system tells nothing the fate is %v, want unknown", got)
		}
		return
	}
	if got := self.Liveness(); got != owner.Alive {
		t.Errorf("the fate of this program is %v, want alive", got)
	}
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dead := self
	dead.PID = strconv.Itoa(ended.Process.Pid)
	if got := dead.Liveness(); got != owner.Dead {
		t.Errorf("the fate of a program that has ended is %v, want dead", got)
	}
}

func TestAnotherProgramWithTheNumberIsNotTheOwner(t *testing.T) {
	self := owner.Self()
	if self.Started == "" {
		return
	}
	self.Started += "0"
	if got := self.Liveness(); got != owner.Dead {
		t.Errorf("the fate is %v, want dead", got)
	}
}

func TestARestartOfTheMachineEndsItsPrograms(t *testing.T) {
	before := owner.Self()
	if before.Boot == "" {
		return
	}
	before.Boot = "another"
	if got := before.Liveness(); got != owner.Dead {
		t.Errorf("the fate is %v, want dead", got)
	}
}

func TestWhereThisProgramCannotLookTheFateIsUnknown(t *testing.T) {
	for name, change := range map[string]func(*owner.Identity){
		"another machine":   func(i *owner.Identity) { i.Host, i.Boot = "another", "another" },
		"a nameless one":    func(i *owner.Identity) { i.Host, i.Boot = "", "another" },
		"no boot":           func(i *owner.Identity) { i.Boot = "" },
		"another container": func(i *owner.Identity) { i.PIDs = "pid:[1]" },
		"no number":         func(i *owner.Identity) { i.PID = "" },
		"no start":          func(i *owner.Identity) { i.Started = "" },
		"nothing at all":    func(i *owner.Identity) { *i = owner.Identity{} },
	} {
		t.Run(name, func(t *testing.T) {
			i := owner.Self()
			change(&i)
			if got := i.Liveness(); got != owner.Unknown {
				t.Errorf("the fate is %v, want unknown", got)
			}
		})
	}
}
