package testmodal

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// instruction is an instruction of a Dockerfile.
type instruction struct{ name, args string }

// parseDockerfile splits a Dockerfile into instructions. A line that ends with a backslash
// continues on the next one. A heredoc is part of its line.
func parseDockerfile(lines []string) []instruction {
	all := strings.Split(strings.Join(lines, "\n"), "\n")
	var out []instruction
	for i := 0; i < len(all); i++ {
		line := strings.TrimSpace(all[i])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for strings.HasSuffix(line, "\\") && i+1 < len(all) {
			i++
			line = strings.TrimSuffix(line, "\\") + all[i]
		}
		name, args, _ := strings.Cut(line, " ")
		if _, mark, ok := strings.Cut(args, "<<"); ok {
			end := strings.Trim(strings.TrimPrefix(strings.Fields(mark + " ")[0], "-"), `"'`)
			for i++; i < len(all); i++ {
				args += "\n" + all[i]
				if strings.TrimSpace(all[i]) == end {
					break
				}
			}
		}
		out = append(out, instruction{strings.ToUpper(name), strings.TrimSpace(args)})
	}
	return out
}

// build builds an image from a Dockerfile. bases maps the names used in FROM to images.
func (s *Server) build(img *image, lines []string, bases map[string]*image, env map[string]string) (err error) {
	var sb *sandbox
	defer func() {
		if sb != nil {
			_ = sb.space.close()
			sb.running.Wait()
		}
	}()
	for i, in := range parseDockerfile(lines) {
		_, _ = fmt.Fprintf(img.log, "Step %d: %s %s\n", i, in.name, in.args)
		switch in.name {
		case "FROM":
			base := bases[in.args]
			if base == nil {
				if base, err = s.images.pull(strings.Fields(in.args + " ?")[0]); err != nil {
					return err
				}
			}
			img.layers, img.workdir, img.env = base.layers, base.workdir, maps.Clone(base.env)
		case "RUN", "COPY":
			if sb == nil {
				if sb, err = s.buildSpace(img); err != nil {
					return err
				}
			}
			args := in.args
			if in.name == "COPY" {
				if args, err = copyCommand(args); err != nil {
					return err
				}
			}
			if err := sb.runStep(img, args, env); err != nil {
				return err
			}
		default:
			if err := img.configure(in); err != nil {
				return err
			}
		}
	}
	if sb != nil {
		img.layers = append([]string{sb.dir}, img.layers...)
	}
	return nil
}

// buildSpace returns a sandbox for the commands of a build. The files that they write are the
// new layer.
func (s *Server) buildSpace(img *image) (*sandbox, error) {
	if !isolated() {
		return nil, fmt.Errorf("RUN needs root on Linux: its commands would change this machine")
	}
	dir, err := os.MkdirTemp(s.images.dir, "build-")
	if err != nil {
		return nil, err
	}
	sp, err := newSpace(spaceOptions{dir: dir, layers: img.layers, base: s.base})
	if err != nil {
		return nil, err
	}
	return &sandbox{server: s, dir: dir, space: sp, image: img}, nil
}

// runStep runs a command of a build.
func (sb *sandbox) runStep(img *image, line string, secrets map[string]string) error {
	args := []string{"/bin/sh", "-c", line}
	if strings.HasPrefix(line, "<<") { // the heredoc is the script
		first, body, _ := strings.Cut(line, "\n")
		args[2] = strings.TrimSuffix(body, strings.Trim(strings.TrimPrefix(first, "<<"), `-"' `))
	}
	if strings.HasPrefix(line, "[") {
		if err := json.Unmarshal([]byte(line), &args); err != nil {
			return err
		}
	}
	env := maps.Clone(img.env)
	maps.Copy(env, secrets)
	dir := path.Clean("/" + img.workdir)
	err := sb.space.inside(func() error { return os.MkdirAll(dir, 0o755) })
	if err != nil {
		return err
	}
	e, err := sb.start(command{args: args, env: env, dir: dir, stdout: true, stderr: true})
	if err != nil {
		return err
	}
	defer e.free()
	_ = e.stdin.Close()
	for _, s := range []*spool{e.stdout, e.stderr} {
		err := s.drain(sb.server.ctx, 0, func(data []byte, _ int64) error {
			_, err := img.log.Write(data)
			return err
		})
		if err != nil {
			return err
		}
	}
	<-e.ended
	if e.code != 0 {
		return fmt.Errorf("the command '%s' returned a non-zero code: %d", strings.Join(args, " "), e.code)
	}
	return nil
}

// copyCommand converts a COPY to a shell command. All images contain this machine's programs,
// so files of another image exist here, too.
func copyCommand(args string) (string, error) {
	words := strings.Fields(args)
	if len(words) != 3 || !strings.HasPrefix(words[0], "--from=") {
		return "", fmt.Errorf("there is nothing to copy from: %s", args)
	}
	return fmt.Sprintf(`mkdir -p "$(dirname %[2]q)" && cp -a %[1]q %[2]q`, words[1], words[2]), nil
}

// configure applies an instruction that runs no command.
func (img *image) configure(in instruction) error {
	switch in.name {
	case "ENV", "ARG":
		for name, value := range assignments(in.args) {
			img.env[name] = os.Expand(value, func(name string) string { return img.env[name] })
		}
	case "WORKDIR":
		img.workdir = path.Join("/", img.workdir, in.args)
		if filepath.IsAbs(in.args) {
			img.workdir = path.Clean(in.args)
		}
	case "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "SHELL", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER":
	default:
		return fmt.Errorf("unknown instruction: %s", in.name)
	}
	return nil
}

// assignments parses the arguments of ENV: "a=b c='d e'", or "a b".
func assignments(line string) map[string]string {
	name, value, ok := strings.Cut(line, " ")
	if ok && !strings.Contains(name, "=") {
		return map[string]string{name: strings.TrimSpace(value)}
	}
	all := map[string]string{}
	var word strings.Builder
	var quote rune
	end := func() {
		if name, value, ok := strings.Cut(word.String(), "="); ok {
			all[name] = value
		}
		word.Reset()
	}
	for _, r := range line {
		switch {
		case quote == 0 && (r == '"' || r == '\''):
			quote = r
		case r == quote:
			quote = 0
		case quote == 0 && r == ' ':
			end()
		default:
			word.WriteRune(r)
		}
	}
	end()
	return all
}
