package primitives

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Provider creates sandboxes of one kind and finds them again. Its methods may be called from
// several goroutines at once.
//
// Abilities that only some kinds have are separate interfaces: [Collector], [Historian],
// [ImageStore], [Installer], [Detector], [Examiner], [PathHolder], [Addressed].
type Provider interface {
	// Create creates a sandbox. ctx covers only the creation. If Create fails, nothing of the
	// sandbox remains.
	//
	// A setting that makes no sense returns fs.ErrInvalid. A setting that this kind of sandbox
	// does not support returns errors.ErrUnsupported: see [Spec.Refuse]. Both errors name the
	// setting.
	Create(ctx context.Context, spec Spec) (EnvironmentPrimitive, error)

	// Attach opens a live sandbox by its ID, also one that another program created. Both
	// programs share it. An ID without a sandbox returns fs.ErrNotExist.
	Attach(ctx context.Context, id string) (EnvironmentPrimitive, error)

	// List returns the sandboxes, oldest first, without attaching to them. If some cannot be
	// read, List returns the others together with the error.
	List(ctx context.Context) ([]Info, error)

	// Remove ends a sandbox by its ID and everything that runs in it, whatever its state. An ID
	// without a sandbox returns fs.ErrNotExist.
	Remove(ctx context.Context, id string) error
}

// Spec describes a new sandbox: the settings that mean the same for every kind. The zero value
// of a field is the default of the kind. A kind that does not support a field refuses it, see
// [Spec.Refuse].
type Spec struct {
	// Image is the name or ID of the image that the sandbox's files come from.
	Image string `json:"image,omitempty"`
	// User runs every command that names no user itself: a name, a number, or "user:group".
	// Empty means the user of the image or of the program.
	User string `json:"user,omitempty"`
	// Env is added to the environment of every command. Snapshots contain it, and users of the
	// sandbox's machine can read it: give secrets only to the commands that need them.
	Env map[string]string `json:"env,omitempty"`
	// Workspace is an existing folder to work in instead of a new one. It is used in place
	// and never deleted. It lies on the machine that runs the sandbox; at Modal, in the
	// image or on a volume.
	Workspace string `json:"workspace,omitempty"`
	// WorkspacePath is the absolute path of the workspace inside the sandbox: of Workspace, for
	// programs that need the same path on both sides, or of a new one, which may be a folder of the
	// image and then keeps its files. Empty lets the kind choose: /workspace where the sandbox has
	// files of its own. A sandbox on a machine, which shares its files, accepts only the path that
	// an earlier sandbox has had, once that has ended; another path is a [*SettingError].
	WorkspacePath string `json:"workspace_path,omitempty"`
	// Network is "none", or the name of a network. Empty means access to the internet.
	Network string `json:"network,omitempty"`
	// CPUs limits the processor time, in processors. A negative number is no limit.
	CPUs float64 `json:"cpus,omitempty"`
	// Memory limits the memory. [NoSize] is no limit.
	Memory Size `json:"memory,omitempty"`
	// Ports are the TCP ports of the sandbox that can be reached from outside: those of a
	// container only from its machine, those of a sandbox at Modal from the internet, without
	// authentication. A [PortLister] returns their addresses.
	Ports []int `json:"ports,omitempty"`
	// Name is the name of the container or of the sandbox at Modal. Empty means none, or a new
	// one.
	Name string `json:"name,omitempty"`
	// Labels are attached to the sandbox, for people and their tools.
	Labels map[string]string `json:"labels,omitempty"`
	// Keep lets the sandbox outlive its handles and its program, until it is terminated or
	// removed. List and Attach find it.
	Keep bool `json:"keep,omitempty"`
	// Grace is the grace period: how long a sandbox that is not kept lives without a connected
	// program.
	Grace time.Duration `json:"grace,omitempty"`
	// Expires limits Keep: after this time the sandbox is no longer kept. Zero keeps it for as
	// long as the kind can. It has no meaning without Keep.
	Expires time.Duration `json:"expires,omitempty"`
	// Session names the conversation that uses the sandbox, for people.
	Session string `json:"session,omitempty"`

	// Install is a program that the image must contain, for an [ImageStore] or an [Installer]. The
	// zero value means none.
	Install Install `json:"-"`
}

// Refuse returns a [*SettingError] with errors.ErrUnsupported for each of the named fields that
// is set. fields are names in JSON. why says why the kind does not support them and what to
// do.
func (s Spec) Refuse(why string, fields ...string) error {
	v := reflect.ValueOf(s)
	var errs []error
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if slices.Contains(fields, name) && !v.FieldByIndex(f.Index).IsZero() && !s.unlimited(name) {
			errs = append(errs, &SettingError{name, why, errors.ErrUnsupported})
		}
	}
	return errors.Join(errs...)
}

// unlimited reports whether the named limit is set to "no limit", which every kind supports.
func (s Spec) unlimited(name string) bool {
	return name == "cpus" && s.CPUs < 0 || name == "memory" && s.Memory < 0
}

// Check returns fs.ErrInvalid for settings that are wrong for every kind of sandbox, as a
// [*SettingError] or as the error of [Command.Check].
func (s Spec) Check() error {
	invalid := func(field, format string, args ...any) error {
		return &SettingError{field, fmt.Sprintf(format, args...), fs.ErrInvalid}
	}
	switch {
	case s.Grace < 0:
		return invalid("grace", "%v is negative; give a positive duration such as 2m, or set keep", s.Grace)
	case s.Expires < 0:
		return invalid("expires", "%v is negative; give a positive duration such as 24h, or 0 to keep the sandbox for ever", s.Expires)
	case strings.ContainsRune(s.Session, 0):
		return invalid("session", "it contains a NUL byte")
	case strings.Count(s.User, ":") > 1:
		return invalid("user", "%q has more than one colon; write it as user or user:group, by names or numbers", s.User)
	}
	for i, p := range s.Ports {
		if p < 1 || p > 65535 {
			return invalid(fmt.Sprintf("ports[%d]", i), "%d is no port; give a number from 1 to 65535", p)
		}
		if slices.Contains(s.Ports[:i], p) {
			return invalid(fmt.Sprintf("ports[%d]", i), "%d is there twice; leave one out", p)
		}
	}
	for key := range s.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return invalid("env", "%q cannot be the name of a variable", key)
		}
	}
	return Command{Args: []string{"env"}, Env: s.Environ(), User: s.User}.Check()
}

// Environ returns Env in the form of [Command].Env, sorted.
func (s Spec) Environ() []string {
	env := make([]string, 0, len(s.Env))
	for key, value := range s.Env {
		env = append(env, key+"="+value)
	}
	slices.Sort(env)
	return env
}

// Install says which program an image must hold and how to add it.
type Install struct {
	// Program is the command. An image that contains it is used unchanged. Empty installs
	// nothing.
	Program string
	// Env is the environment in which Program and Needs are looked for.
	Env []string
	// Needs are the commands that Commands require.
	Needs []string
	// Commands install the program. A shell runs them one after another, as root.
	Commands []string
	// BuildEnv is the environment of Commands, such as the variables of a proxy. It must
	// hold no secrets.
	BuildEnv []string
	// Name names the image, if images have names. Labels are attached to it.
	Name   string
	Labels map[string]string
	// Advice says which image to choose if the program cannot be added.
	Advice string
}

// Info describes a sandbox in the result of [Provider].List.
type Info struct {
	ID      string    `json:"id"`
	Status  Status    `json:"status"`
	Created time.Time `json:"created"`
	// Owned reports whether the program that created the sandbox is alive. It is false if this
	// machine cannot know, for example about a program of another machine. Programs in the
	// sandbox and other attached programs do not count.
	Owned bool `json:"owned"`
	// Kept reports whether the sandbox outlives its program, until Expires. A zero Expires
	// means for ever.
	Kept    bool      `json:"kept"`
	Expires time.Time `json:"expires,omitzero"`
	// Orphan reports whether the program that created the sandbox is known to be dead and the
	// sandbox is not kept: it ends after its grace period, or a [Collector] removes it.
	Orphan bool `json:"orphan,omitempty"`
	// OrphanSince is when the orphan was found without its program and any other one. Zero means
	// that it is unknown, or that another program is attached.
	OrphanSince time.Time `json:"orphan_since,omitzero"`

	Image   string `json:"image,omitempty"`   // the image that it was created from
	Name    string `json:"name,omitempty"`    // in addition to its ID; empty for none
	Session string `json:"session,omitempty"` // Spec.Session
	Owner   string `json:"owner,omitempty"`   // the program that created it, as host:pid, for people
	// GuestVersion is the version of the guest protocol that the sandbox was created with. Zero
	// means that it is unknown, or that the guest comes with the connecting program.
	GuestVersion int `json:"guest_version,omitempty"`
}

// SpecChecker is implemented by providers that know before they create anything which settings they refuse.
type SpecChecker interface {
	// CheckSpec returns those errors of Create that no machine, engine or account decides. It contacts nothing.
	CheckSpec(spec Spec) error
}

// ProgramFinder is implemented by providers whose sandboxes run the programs of this machine.
type ProgramFinder interface {
	// FindProgram returns the error with which a command of a new sandbox would not start: that the PATH of
	// spec and env has no program of this name. A name with a slash is not looked for: the sandbox may
	// get it.
	FindProgram(spec Spec, env []string, name string) error
}

// Collector is implemented by providers that can remove orphans.
type Collector interface {
	// GC removes sandboxes that are not kept and whose programs have died, and what remains of
	// those whose creation or removal was interrupted. After a failed removal it continues with
	// the others. It returns what it removed together with the error.
	GC(ctx context.Context, opts GCOptions) ([]Garbage, error)
}

// GCOptions configures [Collector].GC. The zero value removes only what is always safe to
// remove.
type GCOptions struct {
	// DryRun only reports what would be removed.
	DryRun bool
	// NoGrace also removes sandboxes whose program has died and that are within their grace
	// period, in which another program could still attach to them.
	NoGrace bool
}

// Garbage is something that a [Collector] removed or would remove.
type Garbage struct {
	Kind    string    `json:"kind"` // "container", "volume", "image", "folder" or "sandbox"
	ID      string    `json:"id"`   // its name
	Why     string    `json:"why"`  // for people
	Created time.Time `json:"created,omitzero"`
}

// Historian is implemented by providers that can report what happened to a sandbox without
// asking the sandbox.
type Historian interface {
	// History returns what happened to a sandbox, oldest first, also after it has ended.
	History(ctx context.Context, id string) ([]Incident, error)
}

// Incident is something that happened to a sandbox.
type Incident struct {
	Time    time.Time // zero if unknown
	Message string    // for people
	// OutOfMemory says that the kernel ended a process because the sandbox had used up its
	// memory.
	OutOfMemory bool
}

// ImageStore is implemented by providers whose sandboxes are created from images and that can
// add [Spec].Install to an image.
type ImageStore interface {
	// BuildImage returns the image that Create would use for spec. It builds the image if it
	// does not exist. It returns fs.ErrExist if the image needs no addition.
	BuildImage(ctx context.Context, spec Spec) (Image, error)
	// Images returns the images that were built, oldest first.
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage removes one of Images by its Ref. It returns fs.ErrExist if a sandbox uses
	// the image, and fs.ErrNotExist for an image that Images does not return.
	RemoveImage(ctx context.Context, ref string) error
}

// Installer is implemented by providers that cannot say whether their sandboxes are created from
// images, because another program knows it: it also chooses the image if [Spec] names none.
type Installer interface {
	// Installs marks the provider: its Create uses [Spec].Install if the sandboxes have images.
	Installs()
}

// Image is an image that an [ImageStore] has built.
type Image struct {
	Ref     string // its name, for Spec.Image
	ID      string // empty if it is the same as Ref
	Base    string // the image that it was built on, as Spec.Image named it
	Labels  map[string]string
	Size    int64 // in bytes, with that of its base; zero if unknown
	Created time.Time
	InUse   bool // a sandbox uses it
}

// Detector is implemented by providers that know, without contacting anything, whether this
// machine is set up for them.
type Detector interface {
	// Present reports whether this machine is set up for the provider.
	Present() bool
}

// Examiner is implemented by providers that can say what their sandboxes need and lack, such
// as an engine or an account.
type Examiner interface {
	// Examine returns what it found about each thing that a sandbox of spec needs. It creates
	// no sandbox. It returns early when ctx ends.
	Examine(ctx context.Context, spec Spec) []Finding
}

// Finding is what an [Examiner] found about one thing. The zero Status is [FindingOK].
type Finding struct {
	Subject string // the thing, in one word: "engine", "account"
	Status  FindingStatus
	Detail  string // what was found, for people
	Advice  string // what the user can do; empty for nothing
	// Err is the error that the finding comes from, if there is one. Detail and Advice may
	// then be empty: the error says it.
	Err error
}

// FindingStatus says how much a finding matters.
type FindingStatus string

// The statuses of a finding.
const (
	FindingOK FindingStatus = ""
	// FindingMissing: sandboxes work, and something about them is slow or does not.
	FindingMissing FindingStatus = "missing"
	// FindingFailed: no sandbox works.
	FindingFailed FindingStatus = "failed"
)

// Addressed is implemented by providers whose sandboxes lie at one of several places, such
// as a machine.
type Addressed interface {
	// Address returns the setting that names the place.
	Address() *string
}

// PathHolder is implemented by providers some of whose settings are paths of this
// machine.
type PathHolder interface {
	// HostPaths returns such settings of the provider, and those of spec that are such
	// paths for its kind of sandbox.
	HostPaths(spec *Spec) []*string
}
