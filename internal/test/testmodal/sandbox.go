package testmodal

import (
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// defaultWorkdir is the default working directory of commands.
const defaultWorkdir = "/root"

// sandbox is a sandbox and its only task.
type sandbox struct {
	server     *Server
	id, task   string
	app        string
	dir        string // removed when the sandbox ends
	definition *pb.Sandbox
	image      *image
	env        map[string]string // of all its commands
	created    time.Time
	space      *space
	volumes    []*mountedVolume
	entrypoint *execution     // nil means none
	running    sync.WaitGroup // goroutines of its commands
	saving     sync.Mutex     // held while taking a snapshot or writing by an index
	stdinIndex uint32         // of the last write
	cleanedUp  chan struct{}  // closed after the sandbox has been cleaned up
	atExit     string         // after cleanedUp: the image of the exit snapshot

	mu      sync.Mutex
	name    string
	tags    map[string]string
	execs   map[string]*execution
	busy    int // number of running commands
	idle    *time.Timer
	life    *time.Timer
	ready   time.Time                 // when the probe succeeded; zero means not yet
	mounted map[string]bool           // images, by path
	saved   map[string]string         // IDs of saved images, by the caller's key
	network *pb.NetworkAccess         // the last policy set
	tokens  map[string]time.Time      // valid tokens and when they expire
	result  *pb.GenericResult         // nil while it runs
	ended   chan struct{}             // closed with result
	tunnels map[uint32]*pb.TunnelData // by port
}

// newSandbox starts a sandbox.
func (s *Server) newSandbox(id string, req *pb.SandboxCreateV2Request, img *image, env map[string]string) (*sandbox, error) {
	def := req.GetDefinition()
	sb := &sandbox{
		server: s, id: id, task: newID("ta"), app: req.GetAppId(), definition: def, image: img,
		env: maps.Clone(img.env), created: time.Now(), name: def.GetName(), tags: tagMap(req.GetTags()),
		execs: map[string]*execution{}, mounted: map[string]bool{}, saved: map[string]string{}, tokens: map[string]time.Time{},
		network: def.GetNetworkAccess(), cleanedUp: make(chan struct{}), ended: make(chan struct{}), tunnels: openTunnels(def.GetOpenPorts().GetPorts()),
	}
	maps.Copy(sb.env, env)
	sb.env["MODAL_SANDBOX_ID"], sb.env["MODAL_TASK_ID"] = sb.id, sb.task
	if def.GetIncludeOidcIdentityToken() {
		sb.env["MODAL_IDENTITY_TOKEN"] = newJWT(sb.id, time.Now().Add(time.Hour))
	}
	var err error
	if sb.dir, err = os.MkdirTemp(s.dir, "sandbox-"); err != nil {
		return nil, err
	}
	if err := sb.open(); err != nil {
		return nil, err
	}
	return sb, nil
}

// open creates the space and starts the sandbox's commands in it.
func (sb *sandbox) open() error {
	mounts, err := sb.mountVolumes()
	if err != nil {
		return err
	}
	for _, dir := range sb.server.programs {
		mounts = append(mounts, mount{source: dir, target: dir, readOnly: true})
	}
	sb.space, err = newSpace(spaceOptions{
		dir: filepath.Join(sb.dir, "space"), layers: sb.image.layers, base: sb.server.base, mounts: mounts,
		noNetwork: sb.definition.GetBlockNetwork() || sb.definition.GetNetworkAccess().GetNetworkAccessType() == pb.NetworkAccess_BLOCKED,
	})
	if err != nil {
		return err
	}
	dirs := []string{sb.workdir()}
	if sb.definition.GetExperimentalOptionsV2()["enable_docker"] == "true" {
		dirs = append(dirs, "/var/lib/docker")
	}
	err = sb.space.inside(func() error {
		for _, dir := range dirs {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = sb.begin()
	}
	if err != nil {
		_ = sb.space.close()
	}
	return err
}

// begin starts the entrypoint and the timers. It holds sb.mu, so that neither can end the
// sandbox before both have started.
func (sb *sandbox) begin() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if len(sb.definition.GetEntrypointArgs()) > 0 {
		if err := sb.startEntrypoint(); err != nil {
			return err
		}
	}
	sb.startClocks()
	return nil
}

// workdir returns the default working directory of commands.
func (sb *sandbox) workdir() string {
	for _, dir := range []string{sb.definition.GetWorkdir(), sb.image.workdir} {
		if dir != "" {
			return dir
		}
	}
	if !isolated() {
		return upper(sb.space.opened.dir, parts[0])
	}
	return defaultWorkdir
}

// startEntrypoint starts the entrypoint. The sandbox ends with it.
func (sb *sandbox) startEntrypoint() error {
	e, err := sb.start(command{
		args: sb.definition.GetEntrypointArgs(), env: maps.Clone(sb.env), dir: sb.workdir(), stdout: true, stderr: true,
		pty: terminal(sb.definition.GetPtyInfo()),
	})
	if err != nil {
		return err
	}
	sb.entrypoint = e
	sb.running.Go(func() {
		<-e.done
		code := e.code
		if e.signal != 0 {
			code = 128 + e.signal
		}
		kind := pb.GenericResult_GENERIC_STATUS_SUCCESS
		if code != 0 {
			kind = pb.GenericResult_GENERIC_STATUS_FAILURE
		}
		sb.end(pb.GenericResult_builder{Status: kind, Exitcode: code}.Build())
	})
	return nil
}

// startClocks starts the timers that end the sandbox.
func (sb *sandbox) startClocks() {
	sb.life = time.AfterFunc(time.Duration(sb.definition.GetTimeoutSecs())*time.Second, func() {
		sb.end(result(pb.GenericResult_GENERIC_STATUS_TIMEOUT))
	})
	if sb.definition.GetIdleTimeoutSecs() > 0 {
		sb.idle = time.AfterFunc(sb.idleTimeout(), func() {
			sb.mu.Lock()
			defer sb.mu.Unlock()
			if sb.busy == 0 { // a command may have started after the timer fired
				sb.endLocked(result(pb.GenericResult_GENERIC_STATUS_TIMEOUT))
			}
		})
	}
}

func (sb *sandbox) idleTimeout() time.Duration {
	return time.Duration(sb.definition.GetIdleTimeoutSecs()) * time.Second
}

// active adds change to the number of running commands. Without one the sandbox is idle.
func (sb *sandbox) active(change int) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.activeLocked(change)
}

// activeLocked is like active. The caller holds sb.mu.
func (sb *sandbox) activeLocked(change int) {
	sb.busy += change
	switch {
	case sb.idle == nil || sb.result != nil:
	case sb.busy > 0:
		sb.idle.Stop()
	default:
		sb.idle.Reset(sb.idleTimeout())
	}
}

// execute starts a command under an ID. A second call with the same ID has no effect.
func (sb *sandbox) execute(id string, c command) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.execs[id] != nil {
		return nil
	}
	if sb.result != nil {
		return errEnded
	}
	e, err := sb.start(c)
	if err != nil {
		return err
	}
	sb.execs[id] = e
	sb.activeLocked(1)
	sb.running.Go(func() {
		<-e.done
		sb.active(-1)
	})
	return nil
}

// errEnded is the error of calls for a sandbox that has ended.
var errEnded = status.Error(codes.FailedPrecondition, "the Sandbox has already finished")

// alive runs f unless the sandbox has ended. The sandbox cannot end while f runs.
func (sb *sandbox) alive(f func() error) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.result != nil {
		return errEnded
	}
	return f()
}

// end ends the sandbox with a result, unless it has already ended. It does not wait.
func (sb *sandbox) end(result *pb.GenericResult) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.endLocked(result)
}

// endLocked is like end. The caller holds sb.mu.
func (sb *sandbox) endLocked(result *pb.GenericResult) {
	if sb.result != nil {
		return
	}
	sb.result = result
	close(sb.ended)
	sb.life.Stop()
	if sb.idle != nil {
		sb.idle.Stop()
	}
	sb.server.running.Go(sb.clear)
}

// clear kills all commands of the sandbox and removes its files.
func (sb *sandbox) clear() {
	defer close(sb.cleanedUp)
	for _, e := range sb.all() {
		e.kill()
	}
	errClose := sb.space.close()
	sb.running.Wait()
	sb.commitVolumes()
	if sb.wantsExitSnapshot() {
		img, err := sb.snapshot()
		if err != nil {
			sb.server.report("snapshot at the end of a sandbox", err)
		} else {
			sb.atExit = img.id
		}
	}
	if err := os.RemoveAll(sb.dir); err != nil || errClose != nil {
		sb.server.report("end a sandbox", errClose, err)
	}
}

// all returns the sandbox's commands.
func (sb *sandbox) all() []*execution {
	var all []*execution
	for _, e := range sb.execs {
		all = append(all, e)
	}
	if sb.entrypoint != nil {
		all = append(all, sb.entrypoint)
	}
	return all
}

// result returns a result that has only a status.
func result(kind pb.GenericResult_GenericStatus) *pb.GenericResult {
	return pb.GenericResult_builder{Status: kind}.Build()
}

// terminal returns info if it requests a terminal, else nil.
func terminal(info *pb.PTYInfo) *pb.PTYInfo {
	if !info.GetEnabled() {
		return nil
	}
	return info
}

func tagMap(tags []*pb.SandboxTag) map[string]string {
	all := map[string]string{}
	for _, tag := range tags {
		all[tag.GetTagName()] = tag.GetTagValue()
	}
	return all
}
