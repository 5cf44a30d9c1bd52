package guest

import (
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// opcode says what a stream is for. It is the first byte of its request.
type opcode uint8

// The operations. The numbers are part of the protocol.
const (
	opPoll opcode = 1 + iota
	opTerminate
	opBye // ends every other operation of this host and answers when all have ended
	opExec
	opReattach
	opAttach // a stream of a process: standard input, output or error
	opRun
	opOpen
	opWrite
	opWriteFiles
	opStat
	opList
	opMkdir
	opRemove
	opMove
	opPack
	opUnpack
	opWatch
	opIdentify
	opListen
	opAccept // takes a connection that the guest has announced to a listener
	opDial
)

// channel is one of a process's streams.
type channel uint8

const (
	chanStdin channel = iota
	chanStdout
	chanStderr
)

// empty is a message without fields.
type empty struct{}

func (*empty) code(*codec) {}

// execRequest starts a command. Token is the host's name for it; other streams use it to
// attach. With Pipes, the frame carries the writing ends of the output pipes: one, and another
// one if standard error is separate.
type execRequest struct {
	Token uint64
	Cmd   primitives.Command
	Pipes bool
}

func (r *execRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeCommand(c, &r.Cmd)
	c.bool(&r.Pipes)
}

// startedReply reports that a command has started.
type startedReply struct{ ID string }

func (r *startedReply) code(c *codec) { codeString(c, &r.ID) }

type reattachRequest struct {
	Token uint64
	ID    string
	From  primitives.Offset
}

func (r *reattachRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeString(c, &r.ID)
	codeOffset(c, &r.From)
}

type attachRequest struct {
	Token   uint64
	Channel channel
}

func (r *attachRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeUint(c, &r.Channel)
}

// runRequest runs a command to its end. With Cmd.Stdin the guest sends an empty reply as soon
// as standard input can be attached.
type runRequest struct {
	Token     uint64
	Cmd       primitives.Command
	MaxOutput int64
}

func (r *runRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeCommand(c, &r.Cmd)
	c.int64(&r.MaxOutput)
}

// runReply follows the output.
type runReply struct {
	StdoutDropped, StderrDropped int64
	Status                       primitives.ExitStatus
	Err                          *wireError
}

func (r *runReply) code(c *codec) {
	c.int64(&r.StdoutDropped)
	c.int64(&r.StderrDropped)
	codeExitStatus(c, &r.Status)
	codeOptional(c, &r.Err, codeError)
}

// endpointRequest is the request of opListen and opDial.
type endpointRequest struct{ Network, Address string }

func (r *endpointRequest) code(c *codec) {
	codeString(c, &r.Network)
	codeString(c, &r.Address)
}

// endpoints are the addresses of a connection, as the sandbox sees them. A listener has only
// the Local one.
type endpoints struct{ Network, Local, Remote string }

func (e *endpoints) code(c *codec) {
	codeString(c, &e.Network)
	codeString(c, &e.Local)
	codeString(c, &e.Remote)
}

// announcement announces a connection to a listener. The host takes it with opAccept.
type announcement struct {
	Token uint64
	endpoints
}

func (a *announcement) code(c *codec) {
	c.uint64(&a.Token)
	a.endpoints.code(c)
}

type acceptRequest struct{ Token uint64 }

func (r *acceptRequest) code(c *codec) { c.uint64(&r.Token) }

type pathRequest struct{ Path string }

func (r *pathRequest) code(c *codec) { codeString(c, &r.Path) }

type writeRequest struct {
	Path string
	Opts primitives.WriteOptions
}

func (r *writeRequest) code(c *codec) {
	codeString(c, &r.Path)
	codeWriteOptions(c, &r.Opts)
}

// fileHeader precedes each file of a batch; its content follows.
type fileHeader struct {
	Path string
	Mode fs.FileMode
	Size int64
}

func (r *fileHeader) code(c *codec) {
	codeString(c, &r.Path)
	codeUint(c, &r.Mode)
	c.int64(&r.Size)
}

// fileFailure reports a file of a batch that was not written.
type fileFailure struct {
	Index int
	Err   wireError
}

func (r *fileFailure) code(c *codec) {
	codeInt(c, &r.Index)
	r.Err.code(c)
}

// listItem is a part of a listing.
type listItem struct{ Infos []primitives.FileInfo }

func (r *listItem) code(c *codec) { codeSlice(c, &r.Infos, codeFileInfo) }

// maxEventContent is the longest content of a watch event; a longer one is left
// out as too large.
const maxEventContent = 64 << 20

type listRequest struct {
	Dir  string
	Opts primitives.ListOptions
}

func (r *listRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codeListOptions(c, &r.Opts)
}

type mkdirRequest struct {
	Path string
	Mode fs.FileMode
}

func (r *mkdirRequest) code(c *codec) {
	codeString(c, &r.Path)
	codeUint(c, &r.Mode)
}

type removeRequest struct {
	Path      string
	Recursive bool
}

func (r *removeRequest) code(c *codec) {
	codeString(c, &r.Path)
	c.bool(&r.Recursive)
}

type moveRequest struct{ From, To string }

func (r *moveRequest) code(c *codec) {
	codeString(c, &r.From)
	codeString(c, &r.To)
}

type packRequest struct {
	Dir  string
	Opts primitives.PackOptions
}

func (r *packRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codePackOptions(c, &r.Opts)
}

type watchRequest struct {
	Dir  string
	Opts primitives.WatchOptions
}

func (r *watchRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codeWatchOptions(c, &r.Opts)
}

// controlRequest is a request about a running process. Seq identifies its answer.
type controlRequest struct {
	Seq    uint64
	Signal primitives.Signal       // for frameSignal
	Size   primitives.TerminalSize // for frameResize
	Output channel                 // for frameCloseOutput
}

func (r *controlRequest) code(c *codec) {
	c.uint64(&r.Seq)
	codeString(c, &r.Signal)
	codeTerminalSize(c, &r.Size)
	codeUint(c, &r.Output)
}

type controlReply struct {
	Seq uint64
	Err *wireError
}

func (r *controlReply) code(c *codec) {
	c.uint64(&r.Seq)
	codeOptional(c, &r.Err, codeError)
}

// exitReport reports the exit of a process.
type exitReport struct {
	Status primitives.ExitStatus
	Err    *wireError
}

func (r *exitReport) code(c *codec) {
	codeExitStatus(c, &r.Status)
	codeOptional(c, &r.Err, codeError)
}

// Replies that hold values of the contract.
type (
	fileInfoReply  struct{ Info primitives.FileInfo }
	stateReply     struct{ State primitives.State }
	terminateReply struct {
		Report primitives.TerminateReport
		Err    *wireError // a report may come with an error
	}
	eventFrame struct{ Event primitives.WatchEvent }
)

func (r *fileInfoReply) code(c *codec) { codeFileInfo(c, &r.Info) }
func (r *stateReply) code(c *codec)    { codeState(c, &r.State) }
func (r *eventFrame) code(c *codec)    { codeWatchEvent(c, &r.Event) }
func (r *terminateReply) code(c *codec) {
	codeTerminateReport(c, &r.Report)
	codeOptional(c, &r.Err, codeError)
}

func codeError(c *codec, v *wireError) { v.code(c) }

// The field lists of all messages. A test fills every struct by reflection, so it fails if a
// field is missing here.

func codeStrings(c *codec, v *[]string) { codeSlice(c, v, codeString[string]) }

func codePaths(c *codec, v *primitives.Paths) {
	codeString(c, &v.Session)
	codeString(c, &v.App)
	codeString(c, &v.Workspace)
	codeString(c, &v.Home)
	codeString(c, &v.MCP)
}

func codeCapabilities(c *codec, v *primitives.Capabilities) {
	codeString(c, &v.OS)
	codeString(c, &v.Arch)
	c.bool(&v.Durable)
	c.bool(&v.Users)
	c.bool(&v.Snapshot)
	c.bool(&v.Fork)
	c.bool(&v.Pause)
	c.bool(&v.Usage)
	c.bool(&v.Forward)
	codeString(c, &v.TreeKill)
	codeString(c, &v.Isolation) // the client replaces it: a guest cannot know
	codeString(c, &v.Note)
}

func codeTerminalSize(c *codec, v *primitives.TerminalSize) {
	codeUint(c, &v.Rows)
	codeUint(c, &v.Cols)
}

func codeCommand(c *codec, v *primitives.Command) {
	codeStrings(c, &v.Args)
	codeString(c, &v.Dir)
	codeStrings(c, &v.Env)
	codeString(c, &v.User)
	c.bool(&v.Stdin)
	c.bool(&v.MergeStderr)
	codeOptional(c, &v.TTY, codeTerminalSize)
	codeInt(c, &v.Timeout)
	codeInt(c, &v.Grace)
	c.bool(&v.Durable)
}

func codeExitStatus(c *codec, v *primitives.ExitStatus) {
	codeInt(c, &v.Code)
	codeString(c, &v.Signal)
	codeString(c, &v.Reason)
}

func codeOffset(c *codec, v *primitives.Offset) {
	c.int64(&v.Stdout)
	c.int64(&v.Stderr)
	c.bool(&v.NoFollow)
}

func codeWriteOptions(c *codec, v *primitives.WriteOptions) {
	codeUint(c, &v.Mode)
	c.bool(&v.Append)
	c.bool(&v.Exclusive)
	codeString(c, &v.IfRevision)
}

func codeFileInfo(c *codec, v *primitives.FileInfo) {
	codeString(c, &v.Path)
	c.int64(&v.Size)
	codeUint(c, &v.Mode)
	c.time(&v.ModTime)
	codeString(c, &v.Target)
	codeString(c, &v.Revision)
	codeInt(c, &v.UID)
	codeInt(c, &v.GID)
}

func codeListOptions(c *codec, v *primitives.ListOptions) {
	codeInt(c, &v.Depth)
	codeString(c, &v.Pattern)
	codeInt(c, &v.Limit)
	c.bool(&v.Strict)
}

func codePackOptions(c *codec, v *primitives.PackOptions) {
	codeStrings(c, &v.Ignore)
	codeStrings(c, &v.Only)
}

func codeWatchOptions(c *codec, v *primitives.WatchOptions) {
	c.bool(&v.Shallow)
	codeStrings(c, &v.Include)
	codeStrings(c, &v.Ignore)
	c.int64(&v.MaxContent)
	codeInt(c, &v.Debounce)
}

func codeWatchEvent(c *codec, v *primitives.WatchEvent) {
	codeString(c, &v.Op)
	codeString(c, &v.Path)
	codeString(c, &v.From)
	c.bool(&v.Dir)
	c.int64(&v.Size)
	c.time(&v.Time)
	c.bytes(&v.Content)
	codeString(c, &v.Omitted)
}

func codeState(c *codec, v *primitives.State) {
	codeString(c, &v.Status)
	codeExitStatus(c, &v.Exit)
}

func codeKilledProcess(c *codec, v *primitives.KilledProcess) {
	codeInt(c, &v.PID)
	codeString(c, &v.Command)
	c.bool(&v.Forced)
}

func codeTerminateReport(c *codec, v *primitives.TerminateReport) {
	codeSlice(c, &v.Killed, codeKilledProcess)
	codeSlice(c, &v.Survivors, codeKilledProcess)
}
