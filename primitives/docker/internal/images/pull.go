// Package images pulls images to an engine, checks what is in them and removes them. It takes a
// client and plain values, and knows nothing about sandboxes.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"
	"github.com/docker/go-units"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

// The pull policies: when to fetch an image from its registry.
const (
	PullMissing = "missing" // if the engine does not have it; "" means the same
	PullAlways  = "always"
	PullNever   = "never"
)

// Wanted describes an image that is needed.
type Wanted struct {
	Ref      string // its name or ID
	Platform string // as in linux/amd64; empty means the engine's
	Pull     string // PullMissing, PullAlways or PullNever
	// Progress gets messages about operations that take long; nil means silence.
	Progress func(string)
}

func (w Wanted) tell(message string) {
	if w.Progress != nil {
		w.Progress(message)
	}
}

// Ensure returns the image, and fetches it first if Pull says so. An image that the engine does not
// have and must not fetch, or that no registry has, is fs.ErrNotExist. An image for another
// platform is errors.ErrUnsupported. A registry that refuses the user is fs.ErrPermission.
func Ensure(ctx context.Context, eng *client.Client, want Wanted) (image.InspectResponse, error) {
	if want.Pull == PullAlways {
		if err := pull(ctx, eng, want); err != nil {
			return image.InspectResponse{}, err
		}
	}
	img, err := eng.ImageInspect(ctx, want.Ref)
	switch {
	case cerrdefs.IsNotFound(err) && want.Pull == PullNever:
		return img, fmt.Errorf("fetch or build the image first, or set pull to missing: %w", err)
	case cerrdefs.IsNotFound(err) && want.Pull != PullAlways:
		if err = pull(ctx, eng, want); err == nil {
			img, err = eng.ImageInspect(ctx, want.Ref)
		}
	}
	if err != nil {
		return img, err
	}
	if img.Os != "linux" {
		return img, fmt.Errorf("%w: the image is for %s; sandboxes need one for linux", errors.ErrUnsupported, img.Os)
	}
	if parts := strings.Split(want.Platform, "/"); len(parts) > 1 && parts[1] != img.Architecture {
		return img, fmt.Errorf("%w: the engine has the image for %s/%s only; set pull to always to fetch it for %s", errors.ErrUnsupported, img.Os, img.Architecture, want.Platform)
	}
	return img, nil
}

// pull fetches the image, with the credentials that the docker command would use.
func pull(ctx context.Context, eng *client.Client, want Wanted) error {
	auth, aerr := engine.Credentials(ctx, want.Ref)
	header := ""
	if auth != (registry.AuthConfig{}) {
		var err error
		if header, err = registry.EncodeAuthConfig(auth); err != nil {
			return fmt.Errorf("pull the image: %w", err)
		}
	}
	want.tell("fetching the image " + want.Ref)
	err := follow(ctx, eng, want, header)
	if err == nil {
		want.tell("fetched the image " + want.Ref)
		return nil
	}
	return fmt.Errorf("pull the image: %w", explainPull(ctx, eng, auth, aerr, err))
}

// follow makes the engine fetch the image and reports the progress. The engine's progress messages
// report failures, too.
func follow(ctx context.Context, eng *client.Client, want Wanted, auth string) error {
	body, err := eng.ImagePull(ctx, want.Ref, image.PullOptions{Platform: want.Platform, RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	p := pullProgress{layers: map[string]*layer{}}
	limited := &io.LimitedReader{R: body}
	for dec := json.NewDecoder(limited); ; {
		limited.N = maxPullLine
		var m pullMessage
		switch err := dec.Decode(&m); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
		case m.Error != "":
			return &pullError{m.Error}
		}
		if s := p.take(m, time.Now()); s != "" {
			want.tell("fetching the image " + want.Ref + ": " + s)
		}
	}
}

// pullError is a failure that the engine reports after a pull has begun.
type pullError struct{ text string }

func (e *pullError) Error() string { return e.text }

// explainPull explains why an image could not be fetched. Old engines do not distinguish a refusal
// from other failures, so it asks the registry again.
func explainPull(ctx context.Context, eng *client.Client, auth registry.AuthConfig, aerr, err error) error {
	_, late := errors.AsType[*pullError](err)
	switch {
	case ctx.Err() != nil:
		return err
	case !late && !cerrdefs.IsNotFound(err) && !cerrdefs.IsInternal(err) && !cerrdefs.IsPermissionDenied(err) && !cerrdefs.IsUnauthorized(err):
		return err
	}
	if aerr != nil {
		err = fmt.Errorf("%w (credentials: %w)", err, aerr)
	}
	refused := cerrdefs.IsPermissionDenied(err) || cerrdefs.IsUnauthorized(err)
	if !refused {
		_, lerr := eng.RegistryLogin(ctx, auth)
		refused = cerrdefs.IsUnauthorized(lerr) || lerr != nil && engine.RegistryRefuses(ctx, auth)
	}
	if refused {
		return engine.WithSentinel(fmt.Errorf("log in first (docker login %s), or check the image's name: %w", auth.ServerAddress, err), fs.ErrPermission)
	}
	if cerrdefs.IsNotFound(err) {
		return fmt.Errorf("%w; check its name and tag", err)
	}
	return fmt.Errorf("%w: %w; check the image's name and the engine's network", primitives.ErrUnavailable, err)
}

const (
	// maxPullLine bounds a progress message of the engine.
	maxPullLine = 1 << 20
	// pullInterval is the time between two reports of the progress.
	pullInterval = time.Second
	// maxLayers bounds the layers that are counted.
	maxLayers = 1024
)

// pullMessage is a progress message of the engine.
type pullMessage struct {
	ID             string `json:"id"` // of a layer
	Status         string `json:"status"`
	ProgressDetail struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error string `json:"error"`
}

type layer struct {
	current, total int64 // bytes
	done           bool
}

// pullProgress sums up the progress of an image's layers.
type pullProgress struct {
	layers map[string]*layer
	told   time.Time
}

// take adds a message and returns the text to report now, or "".
func (p *pullProgress) take(m pullMessage, now time.Time) string {
	if p.told.IsZero() {
		p.told = now // the beginning was reported
	}
	l := p.layers[m.ID]
	switch {
	case m.ID == "" || l == nil && len(p.layers) >= maxLayers:
		return ""
	case l == nil:
		if m.Status != "Pulling fs layer" && m.Status != "Already exists" {
			return "" // about the tag, not a layer
		}
		l = &layer{}
		p.layers[m.ID] = l
	}
	switch m.Status {
	case "Downloading":
		l.current, l.total = m.ProgressDetail.Current, m.ProgressDetail.Total
	case "Download complete":
		l.current = l.total
	case "Pull complete", "Already exists":
		l.done = true
	}
	if now.Sub(p.told) < pullInterval {
		return ""
	}
	p.told = now
	return p.String()
}

func (p *pullProgress) String() string {
	done := 0
	var current, total int64
	for _, l := range p.layers {
		current, total = current+l.current, total+l.total
		if l.done {
			done++
		}
	}
	return fmt.Sprintf("%d of %d layers, %s of %s", done, len(p.layers), units.HumanSize(float64(current)), units.HumanSize(float64(total)))
}
