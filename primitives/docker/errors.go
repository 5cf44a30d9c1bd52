package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// explainJoin explains why this program could not connect to a guest. It checks whether the
// container has ended meanwhile.
func explainJoin(ctx context.Context, eng *client.Client, id string, err error) error {
	if ctx.Err() != nil {
		return engine.Explain(eng, err)
	}
	attempts := 1
	if engine.ConnectionFailed(err) {
		attempts = stateAttempts // the stream may end before the engine knows
	}
	tick := time.NewTicker(stateInterval)
	defer tick.Stop()
	for range attempts {
		found, ierr := eng.ContainerInspect(ctx, id)
		switch {
		case cerrdefs.IsNotFound(ierr):
			return fmt.Errorf("%w: its container has ended just now", fs.ErrNotExist)
		case ierr != nil:
			return engine.Explain(eng, ierr)
		case found.State == nil || !found.State.Running:
			return notRunning(found)
		}
		<-tick.C
	}
	if err = engine.Explain(eng, err); errors.Is(err, fs.ErrNotExist) {
		// The sandbox exists, so the error must not be fs.ErrNotExist.
		return fmt.Errorf("%w: the container runs, but there was no way into it: %s", primitives.ErrUnavailable, err.Error())
	}
	return err
}

// explainStart explains why the engine could not start a container. If the engine has no error type
// for the reason, explainStart looks at the text and at this machine. It does not inspect the
// container, which the engine has already removed unless it is kept.
func explainStart(ctx context.Context, eng *client.Client, cfg config, img image.InspectResponse, err error) error {
	if unmet, ok := errors.AsType[*guest.HandshakeError](err); ok && ctx.Err() == nil {
		if wrong := cfg.cannotServe(img, unmet.Stderr); wrong != nil {
			return wrong
		}
		return fmt.Errorf("the guest did not answer: %w; unless the cause is another, set runner to the envrunner program of this version", err)
	}
	switch {
	case missesNetwork(err):
		return fmt.Errorf("network: %w; choose one that 'docker network ls' shows", err)
	case mayBeMounts(err):
		if occupied := cfg.occupied(err.Error()); occupied != nil {
			return fmt.Errorf("%w: %w", occupied, err) // keep err for mayBeMounts
		}
	}
	if !cerrdefs.IsInternal(err) {
		return err
	}
	wrong := cfg.refused(err.Error())
	if wrong == nil && strings.HasPrefix(eng.DaemonHost(), "unix://") {
		wrong = cfg.takenPort(ctx)
	}
	if wrong == nil {
		return err
	}
	// Use only the text: the type of err means a failure of the engine.
	return fmt.Errorf("%w: %s", wrong, err.Error())
}

// guestSays is the prefix of the message of a guest that cannot serve the sandbox.
const guestSays = "envrunner guest: "

// cannotServe returns the reason that the guest itself has written. It returns nil if there is
// none: then the program was no guest, or not the right one.
func (c config) cannotServe(img image.InspectResponse, said string) error {
	_, reason, found := strings.Cut(said, guestSays)
	_, path, refused := strings.Cut(reason, "workspace_path: ")
	switch {
	case !found:
		return nil
	case refused:
		return c.invalid("workspace_path", strings.TrimSpace(path))
	case img.Config != nil && validName(img.Config.Labels[labelFolder]) &&
		strings.Contains(reason, guestRoot+"/"+img.Config.Labels[labelFolder]) && strings.Contains(reason, "permission denied"):
		return fmt.Errorf("%w: user: the snapshot's files belong to the user of the sandbox that it was made of: %s; start it as that user", fs.ErrPermission, reason)
	}
	return fmt.Errorf("%w: the guest cannot serve the container: %s", primitives.ErrUnavailable, reason)
}

// occupied returns an error if the image has a file in place of the runner's or the
// socket's folder, else nil.
func (c config) occupied(said string) error {
	if strings.Contains(said, `"`+guestDir+"/") && strings.Contains(said, "not a directory") {
		return c.invalid("image", "it has something at "+guestDir+", which is the sandbox's; choose another one")
	}
	return nil
}

// refused returns an error that names the setting with which the engine could not start a
// container, or nil. Engines distinguish these failures only by their text, which is that of the
// kernel and of libraries that all engines share.
func (c config) refused(said string) error {
	switch {
	case strings.Contains(said, "unable to find user "), strings.Contains(said, "unable to find group "):
		return c.unknownUser(said)
	case strings.Contains(said, "uids and gids must be in range"):
		return c.invalid("user", fmt.Sprintf("%q is out of range; give numbers from 0 to 2147483647", c.User))
	case strings.Contains(said, "cannot assign requested address"):
		return c.foreignAddress(said)
	case c.Seccomp != "" && concernsProfile(said):
		return c.invalid("seccomp", "the engine does not understand the profile; correct it")
	case strings.Contains(said, ": not a directory"): // of a container that it has not started
		for i, m := range c.Mounts {
			if strings.Contains(said, m.Target+": not a directory") {
				return c.invalid(fmt.Sprintf("mounts[%d].target", i), fmt.Sprintf("%q lies below a file of the image; choose another one", m.Target))
			}
		}
	}
	return nil
}

// unknownUser returns an error that names the user or group that the image does not have. Without a
// user in the configuration it is the one that the image itself names.
func (c config) unknownUser(said string) error {
	who, file := "", "/etc/passwd"
	_, name, found := strings.Cut(said, "unable to find user ")
	if !found {
		_, name, _ = strings.Cut(said, "unable to find group ")
		who, file = "group ", "/etc/group"
	}
	if name, _, found = strings.Cut(name, ": no matching entries"); !found {
		return nil
	}
	what := fmt.Sprintf("the image has no %s%q in %s", who, name, file)
	if c.User == "" {
		what = fmt.Sprintf("the image is set to run as %s%q, which is not in its %s", who, name, file)
	}
	return fmt.Errorf("%w: user: %s; name another one, or a number", primitives.ErrUnknownUser, what)
}

// foreignAddress returns an error that names the published port whose address the
// engine's machine does not have, else nil.
func (c config) foreignAddress(said string) error {
	for i, p := range c.Publish {
		if ip := p.normal().HostIP; strings.Contains(said, " "+net.JoinHostPort(ip, "")) {
			return c.invalid(fmt.Sprintf("publish[%d].host_ip", i), "the engine's machine has no address "+ip+"; choose one of its own, such as "+loopback)
		}
	}
	return nil
}

// concernsProfile reports whether a failure is about the content of a seccomp profile, rather than
// about a kernel without seccomp.
func concernsProfile(said string) bool {
	if strings.Contains(said, "kernel") {
		return false
	}
	for _, about := range []string{" for seccomp", "seccomp profile", "seccomp filter", "seccomp syscall", "seccomp flag"} {
		if strings.Contains(said, about) {
			return true
		}
	}
	return false
}

// takenPort returns an error for the first published port that another program of this machine
// uses, or nil.
func (c config) takenPort(ctx context.Context) error {
	for i, p := range c.Publish {
		p = p.normal()
		if p.Host == 0 || p.Protocol != "tcp" {
			continue
		}
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(p.HostIP, strconv.Itoa(p.Host)))
		switch {
		case err == nil:
			_ = l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%w: publish[%d].host: %d is taken on this machine; choose another one, or 0", fs.ErrExist, i, p.Host)
		}
	}
	return nil
}

// mayBeMounts reports whether err may mean that the engine lacks, or may not mount, what this
// package mounts into the container. Engines have no error type for that.
func mayBeMounts(err error) bool {
	known := errors.Is(err, primitives.ErrUnknownUser) || errors.Is(err, fs.ErrExist) || errors.Is(err, errors.ErrUnsupported)
	return !known && (cerrdefs.IsInvalidArgument(err) || cerrdefs.IsInternal(err))
}

// wrap adds the operation and the target to an error.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}

// isMissingOrBusy reports whether the engine lacks the object of a call, or the object is in the
// wrong state.
func isMissingOrBusy(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
}
