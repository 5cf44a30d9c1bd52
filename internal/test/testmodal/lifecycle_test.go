package testmodal_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestASandboxEndsWithItsTime(t *testing.T) {
	_, mc := open(t)
	tests := map[string]modal.SandboxCreateParams{
		"of its life":     {Timeout: time.Second},
		"of being idle":   {IdleTimeout: time.Second},
		"with a command":  {Timeout: time.Second, Command: []string{"sleep", "100"}},
		"idle by command": {IdleTimeout: time.Second, Command: []string{"sleep", "100"}},
	}
	all := map[string]*modal.Sandbox{}
	for name, params := range tests {
		all[name] = create(t, mc, &params)
	}
	for name, sb := range all {
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != 124 {
			t.Errorf("%s: exit %d, %v", name, code, err)
		}
		if _, err := sb.Exec(t.Context(), []string{"true"}, nil); err == nil {
			t.Errorf("%s: a command ran afterwards", name)
		}
	}
}

func TestACommandKeepsASandboxFromBeingIdle(t *testing.T) {
	_, mc := open(t)
	for idle := time.Second; ; idle *= 4 {
		sb := create(t, mc, &modal.SandboxCreateParams{IdleTimeout: idle})
		p, err := sb.Exec(t.Context(), []string{"sh", "-c", fmt.Sprintf("sleep %v; echo done", 1.5*idle.Seconds())}, nil)
		if err != nil && idle < time.Minute {
			continue // on a busy machine the sandbox was already idle for too long
		}
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout)
		code, werr := p.Wait(t.Context(), nil)
		if string(out) != "done\n" || code != 0 || errors.Join(err, werr) != nil {
			t.Errorf("the command ended with %q, %d, %v", out, code, errors.Join(err, werr))
		}
		return
	}
}

func TestTerminateEndsTheWholeTree(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{Command: []string{"sh", "-c", "sleep " + nap() + " & sleep " + nap()}})
	const script = `setsid sh -c 'trap "" TERM; sleep $0 & sleep $0' $0 >/dev/null 2>&1 </dev/null & sleep $0 >/dev/null 2>&1 & echo started`
	if out, _ := run(t, sb, "sh", "-c", script, nap()); out != "started\n" {
		t.Fatalf("the script said %q", out)
	}
	for began := time.Now(); running(t, nap()) == 0; { // the forked shells may not run sleep yet
		if time.Since(began) > time.Minute {
			t.Fatal("nothing runs")
		}
	}
	if code, err := sb.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil || code != 137 {
		t.Errorf("exit %d, %v", code, err)
	}
	if n := running(t, nap()); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

func TestListsComeInPagesThatTheClientTurns(t *testing.T) {
	s, mc := open(t)
	want := map[string]bool{}
	for i := range 7 {
		sb := create(t, mc, &modal.SandboxCreateParams{Tags: map[string]string{"kind": "page"}, Name: fmt.Sprintf("page-%d", i)})
		want[sb.SandboxID] = true
	}
	ended := create(t, mc, nil)
	if _, err := ended.Terminate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	all, err := mc.Sandboxes.List(t.Context(), &modal.SandboxListParams{AppID: app(t, mc).AppID, Tags: map[string]string{"kind": "page"}})
	if err != nil {
		t.Fatal(err)
	}
	for sb, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		seen[sb.SandboxID] = true
	}
	if !maps.Equal(seen, want) {
		t.Errorf("listed %v, want %v", slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(want)))
	}
	if n := s.Calls("SandboxListV2"); n != 3 {
		t.Errorf("%d calls for two pages and the end", n)
	}
}

func TestANameIsTakenOnceAndFreeAgainAfterwards(t *testing.T) {
	_, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{Name: "only"})
	_, err := mc.Sandboxes.Create(t.Context(), app(t, mc), mc.Images.FromRegistry("debian:12", nil), &modal.SandboxCreateParams{Name: "only"})
	if _, ok := errors.AsType[modal.AlreadyExistsError](err); !ok {
		t.Errorf("the second one: %v", err)
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	create(t, mc, &modal.SandboxCreateParams{Name: "only"})
}

func TestSettingsOutOfRangeAreRefused(t *testing.T) {
	_, mc := open(t)
	tests := map[string]modal.SandboxCreateParams{
		"cores":   {CPU: 1000},
		"memory":  {MemoryMiB: 1 << 30},
		"life":    {Timeout: 48 * time.Hour},
		"cloud":   {Cloud: "cumulus"},
		"region":  {Regions: []string{"atlantis"}},
		"GPU":     {GPU: "abacus"},
		"GPUs":    {GPU: "T4:99"},
		"domain":  {OutboundDomainAllowlist: &modal.Allowlist{Entries: []string{"no domain"}}},
		"network": {OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"1.2.3.4/99"}}},
		"ports":   {EncryptedPorts: []int{80, 80}},
	}
	for name, params := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := mc.Sandboxes.Create(t.Context(), app(t, mc), mc.Images.FromRegistry("debian:12", nil), &params)
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestReadinessIsTriedUntilItIs(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	probe, err := modal.NewExecProbe([]string{"test", "-e", "/tmp/ready"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, mc, &modal.SandboxCreateParams{ReadinessProbe: probe, Command: []string{"sh", "-c", "sleep 0.3; touch /tmp/ready; sleep 100"}})
	if err := sb.WaitUntilReady(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if _, code := run(t, sb, "test", "-e", "/tmp/ready"); code != 0 {
		t.Error("it was not ready")
	}
	never := create(t, mc, &modal.SandboxCreateParams{ReadinessProbe: probe})
	err = never.WaitUntilReady(t.Context(), time.Second, nil)
	if _, ok := errors.AsType[modal.TimeoutError](err); !ok {
		t.Errorf("one that never is: %v", err)
	}
}

func TestAMemorySnapshotIsRefused(t *testing.T) {
	_, mc := open(t)
	for enabled, want := range map[bool]codes.Code{false: codes.FailedPrecondition, true: codes.Unimplemented} {
		sb := create(t, mc, &modal.SandboxCreateParams{ExperimentalEnableSnapshot: enabled})
		if _, err := sb.ExperimentalSnapshot(t.Context(), nil); status.Code(err) != want {
			t.Errorf("enabled %v: %v", enabled, err)
		}
		if out, _ := run(t, sb, "echo", "alive"); out != "alive\n" {
			t.Errorf("afterwards: %q", out)
		}
	}
}

func TestAnImageIsBuiltByItsCommandsOnce(t *testing.T) {
	needRoot(t)
	s, mc := open(t)
	secret, err := mc.Secrets.FromMap(t.Context(), map[string]string{"TOKEN": "s3cret"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	build := func() *modal.Sandbox {
		img := mc.Images.FromRegistry("debian:12", nil).DockerfileCommands([]string{
			"ENV COLOUR=red SIZE='very big'",
			"WORKDIR /srv/app",
			"RUN echo built > file && \\",
			"    mkdir -p /usr/local/share/thing && echo $COLOUR $TOKEN > /usr/local/share/thing/it",
			"RUN rm -f /etc/debian_version && cat /proc/sys/kernel/random/uuid > /srv/once",
		}, &modal.ImageDockerfileCommandsParams{Secrets: []*modal.Secret{secret}})
		sb, err := mc.Sandboxes.Create(t.Context(), app(t, mc), img, nil)
		if err != nil {
			t.Fatal(err)
		}
		detach(t, sb)
		return sb
	}
	first, second := build(), build()
	const script = "pwd; cat file /usr/local/share/thing/it; echo $SIZE; test -e /etc/debian_version && echo still there; echo [$TOKEN]"
	if out, _ := run(t, first, "sh", "-c", script); out != "/srv/app\nbuilt\nred s3cret\nvery big\n[]\n" {
		t.Errorf("in the image: %q", out)
	}
	one, _ := run(t, first, "cat", "/srv/once")
	two, _ := run(t, second, "cat", "/srv/once")
	if one != two || one == "" {
		t.Errorf("built twice: %q and %q", one, two)
	}
	if s.Calls("ImageJoinStreaming") == 0 {
		t.Error("nobody waited for the build")
	}
}

func TestAnImageThatDoesNotBuildSaysWhy(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	tests := map[string]struct {
		from     string
		commands []string
		want     string
	}{
		"a command fails":     {"debian:12", []string{"RUN echo the reason >&2; exit 7"}, "the reason"},
		"its status":          {"debian:12", []string{"RUN echo the reason >&2; exit 7"}, "non-zero code: 7"},
		"unknown image":       {"no/such-image:1", nil, "no/such-image:1"},
		"unknown instruction": {"debian:12", []string{"FRUM x"}, "FRUM"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := mc.Images.FromRegistry(tt.from, nil).DockerfileCommands(tt.commands, nil).Build(t.Context(), app(t, mc), nil)
			if _, ok := errors.AsType[modal.RemoteError](err); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, which should have %q", err, tt.want)
			}
		})
	}
}

func TestASnapshotHasWhatWasWrittenAndLacksWhatWasRemoved(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	sb := create(t, mc, nil)
	if _, code := run(t, sb, "sh", "-c", "echo kept > /root/file; echo prog > /usr/local/bin/prog; rm -r /etc/skel; ln -s file /root/link"); code != 0 {
		t.Fatalf("exit %d", code)
	}
	img, err := sb.SnapshotFilesystem(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, code := run(t, sb, "sh", "-c", "echo later > /root/file"); code != 0 {
		t.Fatalf("exit %d", code)
	}
	found, err := mc.Images.FromID(t.Context(), img.ImageID, nil)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := mc.Sandboxes.Create(t.Context(), app(t, mc), found, nil)
	if err != nil {
		t.Fatal(err)
	}
	detach(t, restored)
	if out, _ := run(t, restored, "sh", "-c", "cat /root/link /usr/local/bin/prog; test -e /etc/skel && echo still there"); out != "kept\nprog\n" {
		t.Errorf("restored: %q", out)
	}
}

func TestTheEntrypointsEndIsTheSandboxes(t *testing.T) {
	_, mc := open(t)
	for _, tt := range []struct {
		script string
		want   int
	}{{"exit 0", 0}, {"exit 9", 9}, {"kill -9 $$", 137}} {
		sb := create(t, mc, &modal.SandboxCreateParams{Command: []string{"sh", "-c", tt.script}})
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != tt.want {
			t.Errorf("%s: %d, %v", tt.script, code, err)
		}
		if rest, err := io.ReadAll(sb.Stdout); err != nil || len(rest) != 0 {
			t.Errorf("%s: wrote %q, %v", tt.script, rest, err)
		}
	}
}

func TestAnImageCanBeMadeOfASandboxesEnd(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{
		Command: []string{"sh", "-c", "echo last > /root/words"}, ExperimentalOptions: map[string]any{"enable_exit_snapshot": true},
	})
	img, err := sb.ExperimentalGetExitSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := mc.Sandboxes.Create(t.Context(), app(t, mc), img, nil)
	if err != nil {
		t.Fatal(err)
	}
	detach(t, restored)
	if out, _ := run(t, restored, "cat", "/root/words"); out != "last\n" {
		t.Errorf("restored: %q", out)
	}
}
