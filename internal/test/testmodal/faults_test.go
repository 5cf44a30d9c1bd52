package testmodal_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

func TestAWrongTokenIsRefused(t *testing.T) {
	s := testmodal.New(t)
	s.Setenv(t)
	id, _ := s.Credentials()
	t.Setenv("MODAL_TOKEN_ID", id)
	t.Setenv("MODAL_TOKEN_SECRET", "as-wrong")
	mc, err := modal.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer mc.Close()
	if _, err := mc.Apps.FromName(t.Context(), "test", nil); status.Code(err) != codes.Unauthenticated {
		t.Errorf("error %v", err)
	}
}

func TestAnAppThatIsNotThereIsNotFound(t *testing.T) {
	_, mc := open(t)
	_, err := mc.Apps.FromName(t.Context(), "missing", nil)
	if _, ok := errors.AsType[modal.NotFoundError](err); !ok {
		t.Errorf("error %v", err)
	}
}

func TestFaultsComeAsManyTimesAsWanted(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	s.Fail("TaskExecStart", codes.Unavailable, 2) // the SDK retries these
	if out, _ := run(t, sb, "echo", "hi"); out != "hi\n" {
		t.Errorf("wrote %q", out)
	}
	if n := s.Calls("TaskExecStart"); n != 3 {
		t.Errorf("%d calls", n)
	}
	s.Fail("TaskExecStart", codes.PermissionDenied, 1)
	if _, err := sb.Exec(t.Context(), []string{"true"}, nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("error %v", err)
	}
	s.Before(func(method string) error {
		if method == "TaskExecWait" {
			return status.Error(codes.PermissionDenied, "before")
		}
		return nil
	})
	p, err := sb.Exec(t.Context(), []string{"true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context(), nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("error %v", err)
	}
	s.Before(nil)
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Errorf("exit %d, %v", code, err)
	}
}

func TestAThrottledClientComesBack(t *testing.T) {
	s, mc := open(t)
	if err := s.Throttle("SandboxCreateV2", 10*time.Millisecond, 3); err != nil {
		t.Fatal(err)
	}
	create(t, mc, nil)
	if n := s.Calls("SandboxCreateV2"); n != 4 {
		t.Errorf("%d calls", n)
	}
}

func TestOneMoreThanTheQuotaIsRefused(t *testing.T) {
	s, mc := open(t)
	s.SetQuota(1)
	sb := create(t, mc, nil)
	another := func() error {
		_, err := mc.Sandboxes.Create(t.Context(), app(t, mc), mc.Images.FromRegistry("debian:12", nil), nil)
		return err
	}
	if err := another(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error %v", err)
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := another(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAStreamThatIsDroppedGoesOnWhereItWas(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "i=0; while read -r line; do i=$((i+1)); echo $i; done"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Stdout)
	for i := range 10 {
		if _, err := io.WriteString(p.Stdin, "\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != fmt.Sprint(i+1) {
			t.Fatalf("line %d: %q, %v", i+1, lines.Text(), lines.Err())
		}
		s.DropStreams()
	}
	if n := s.Calls("TaskExecStdioRead"); n < 9 {
		t.Errorf("only %d streams", n)
	}
}

func TestAnUploadThatIsDroppedGoesOnWhereItWas(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	path := filepath.Join(workdir(t, sb), "upload")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	s.SlowStreams(10 * time.Second) // enough to drop it, even on a busy machine
	written := make(chan error, 1)
	go func() { written <- sb.Filesystem.WriteBytes(t.Context(), data, path, nil) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for drops := 0; ; {
		select {
		case <-tick.C:
			if drops < 3 && s.Calls("TaskExecStdinWriteStream") > drops {
				if drops++; drops == 3 {
					s.SlowStreams(0)
				}
				s.DropStreams()
			}
			continue
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
		}
		break
	}
	if s.Calls("TaskExecStdinStatus") == 0 {
		t.Error("no stream was dropped")
	}
	back, err := sb.Filesystem.ReadBytes(t.Context(), path, nil)
	if err != nil || !bytes.Equal(back, data) {
		t.Errorf("%d bytes of %d came back, %v", len(back), len(data), err)
	}
}

func TestTokensExpireAndAreRenewed(t *testing.T) {
	s, mc := open(t)
	s.SetTokenLife(29 * time.Second) // so the SDK renews the token when it is refused
	sb := create(t, mc, nil)
	run(t, sb, "true")
	before := s.Calls("SandboxGetCommandRouterAccess") // a token may also have expired by itself
	s.ExpireTokens()
	if out, _ := run(t, sb, "echo", "again"); out != "again\n" {
		t.Errorf("wrote %q", out)
	}
	if n := s.Calls("SandboxGetCommandRouterAccess") - before; n != 1 {
		t.Errorf("renewed %d times", n)
	}
}

func TestSlowStreamsAreSlow(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	s.SlowStreams(time.Hour)
	p, err := sb.Exec(t.Context(), []string{"echo", "hi"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		out, _ := io.ReadAll(p.Stdout)
		read <- string(out)
	}()
	if _, err := p.Wait(t.Context(), nil); err != nil { // Wait uses no stream
		t.Fatal(err)
	}
	select {
	case out := <-read:
		t.Errorf("read %q in no time", out)
	default:
	}
	s.SlowStreams(0)
	s.DropStreams()
	if out := <-read; out != "hi\n" {
		t.Errorf("read %q", out)
	}
}

// dialRouter returns a client of the router without the SDK, and a function that adds a token
// to a context.
func dialRouter(t *testing.T, s *testmodal.Server) (pb.TaskCommandRouterClient, func(token string) context.Context) {
	t.Helper()
	conn, err := grpc.NewClient(s.URL()[len("http://"):], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTaskCommandRouterClient(conn), func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
}

func TestATokenIsForOneSandbox(t *testing.T) {
	s, mc := open(t)
	one, two := s.TaskOf(create(t, mc, nil).SandboxID), s.TaskOf(create(t, mc, nil).SandboxID)
	client, with := dialRouter(t, s)
	start := func(task, token string) codes.Code {
		_, err := client.TaskExecStart(with(token), pb.TaskExecStartRequest_builder{
			TaskId: task, ExecId: "1", CommandArgs: []string{"true"},
		}.Build())
		return status.Code(err)
	}
	if code := start(one.Task, one.Token()); code != codes.OK {
		t.Errorf("its own: %v", code)
	}
	for _, token := range []string{two.Token(), "", "wrong"} {
		if code := start(one.Task, token); code != codes.Unauthenticated {
			t.Errorf("another one: %v", code)
		}
	}
}

func TestCallsOfACommandCanBeRepeated(t *testing.T) {
	s, mc := open(t)
	task := s.TaskOf(create(t, mc, nil).SandboxID)
	client, with := dialRouter(t, s)
	ctx := with(task.Token())
	for range 3 {
		if _, err := client.TaskExecStart(ctx, pb.TaskExecStartRequest_builder{
			TaskId: task.Task, ExecId: "same", CommandArgs: []string{"sh", "-c", "echo started; cat"},
			StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	write := func(offset uint64, data string, eof bool) codes.Code {
		_, err := client.TaskExecStdinWrite(ctx, pb.TaskExecStdinWriteRequest_builder{
			TaskId: task.Task, ExecId: "same", Offset: offset, Data: []byte(data), Eof: eof,
		}.Build())
		return status.Code(err)
	}
	for _, tt := range []struct {
		offset uint64
		data   string
		want   codes.Code
	}{{0, "abc", codes.OK}, {0, "abc", codes.OK}, {1, "bcde", codes.OK}, {9, "gap", codes.InvalidArgument}, {5, "f", codes.OK}} {
		if code := write(tt.offset, tt.data, false); code != tt.want {
			t.Errorf("write %q at %d: %v", tt.data, tt.offset, code)
		}
	}
	for range 2 {
		if code := write(6, "", true); code != codes.OK {
			t.Errorf("the end: %v", code)
		}
	}
	if code := write(6, "more", false); code != codes.FailedPrecondition {
		t.Errorf("more after the end: %v", code)
	}
	for _, offset := range []uint64{0, 8} {
		stream, err := client.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task.Task, ExecId: "same", Offset: offset}.Build())
		if err != nil {
			t.Fatal(err)
		}
		var out []byte
		for msg, err := stream.Recv(); err == nil; msg, err = stream.Recv() {
			out = append(out, msg.GetData()...)
		}
		if want := "started\nabcdef"[offset:]; string(out) != want {
			t.Errorf("from %d: %q, want %q", offset, out, want)
		}
	}
}

func TestAskingForTheStatusEndsABlockedWrite(t *testing.T) {
	s, mc := open(t)
	task := s.TaskOf(create(t, mc, nil).SandboxID)
	client, with := dialRouter(t, s)
	ctx := with(task.Token())
	if _, err := client.TaskExecStart(ctx, pb.TaskExecStartRequest_builder{
		TaskId: task.Task, ExecId: "1", CommandArgs: []string{"sleep", "100"},
	}.Build()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := client.TaskExecStdinWrite(ctx, pb.TaskExecStdinWriteRequest_builder{
			TaskId: task.Task, ExecId: "1", Data: make([]byte, 1<<20),
		}.Build())
		ended <- err
	}()
	for {
		got, err := client.TaskExecStdinStatus(ctx, pb.TaskExecStdinStatusRequest_builder{TaskId: task.Task, ExecId: "1"}.Build())
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if status.Code(err) != codes.Aborted {
				t.Errorf("the write: %v", err)
			}
			return
		default:
		}
		if got.GetClosed() {
			t.Fatal("stdin is closed")
		}
	}
}

func TestAnExecGoesOnAfterTheNetworkWasCut(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	p, err := sb.Exec(t.Context(), []string{"cat"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Stdout)
	for i := range 5 {
		want := fmt.Sprint("line ", i)
		if _, err := io.WriteString(p.Stdin, want+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
		s.CutConnections()
	}
	s.SetDown(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := sb.Poll(ctx, nil); err == nil {
		t.Error("a call passed the network that is down")
	}
	s.SetDown(false)
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Errorf("exit %d, %v", code, err)
	}
}

func TestTheServerTellsWhatSandboxesWereMadeFrom(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{CPU: 2, MemoryMiB: 512, Regions: []string{"us-east-1"}})
	def := s.Definition(sb.SandboxID)
	if def.GetResources().GetMilliCpu() != 2000 || def.GetResources().GetMemoryMb() != 512 || def.GetTimeoutSecs() != 300 {
		t.Errorf("made from %v", def)
	}
	err := sb.UpdateNetworkPolicy(t.Context(), &modal.SandboxUpdateNetworkPolicyParams{
		OutboundCIDRAllowlist:   &modal.Allowlist{Entries: []string{"10.0.0.0/8"}},
		OutboundDomainAllowlist: &modal.Allowlist{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.NetworkAccess(sb.SandboxID).GetAllowedCidrs(); len(got) != 1 || got[0] != "10.0.0.0/8" {
		t.Errorf("allowed %q", got)
	}
}
