//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// conduct drives a program over pipes with lines of JSON.
type conduct struct {
	program, dir, home string
	env, launcher      []string
	args               []string // nil means the arguments that talk knows

	stdin  io.WriteCloser
	lines  *bufio.Reader
	stderr bytes.Buffer
	cmd    *exec.Cmd
	said   []answered // for each prompt that the program gets
}

// start starts the program, through the launcher if there is one.
func (c *conduct) start(ctx context.Context, env []string, args ...string) (err error) {
	env = append(slices.Clone(c.env), env...)
	if len(c.launcher) == 0 {
		c.cmd = exec.CommandContext(ctx, c.program, args...)
		c.cmd.Dir, c.cmd.Env = c.dir, env
	} else {
		argv := slices.Clone(c.launcher[1 : len(c.launcher)-1])
		for _, kv := range env {
			argv = append(argv, "-e", kv)
		}
		argv = append(argv, "-w", c.dir, c.launcher[len(c.launcher)-1], c.program)
		c.cmd = exec.CommandContext(ctx, c.launcher[0], append(argv, args...)...)
	}
	c.cmd.Stderr = &c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.lines = bufio.NewReaderSize(out, 1<<20)
	return c.cmd.Start()
}

func (c *conduct) end() error { return errors.Join(c.stdin.Close(), c.cmd.Wait()) }

// variable returns the value of a variable of the program.
func (c *conduct) variable(name string) string {
	for _, kv := range c.env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

func (c *conduct) send(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		_, err = c.stdin.Write(append(data, '\n'))
	}
	return err
}

// until reads lines up to the first that contains a text.
func (c *conduct) until(text string) ([]byte, error) {
	for {
		line, err := c.lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if bytes.Contains(line, []byte(text)) {
			return line, nil
		}
	}
}

// answer records when the lines with these texts come.
func (c *conduct) answer(prompt int, start time.Time, first, last string) error {
	if _, err := c.until(first); err != nil {
		return err
	}
	c.said[prompt].first = time.Since(start)
	_, err := c.until(last)
	c.said[prompt].total = time.Since(start)
	return err
}

func talkToClaude(ctx context.Context, c *conduct) error {
	env := []string{"CLAUDE_CONFIG_DIR=" + c.home + "/.claude", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
	start := time.Now()
	args := c.args
	if args == nil {
		args = []string{
			"--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
			"--permission-prompt-tool", "stdio", "--include-partial-messages", "--setting-sources", "user", "--strict-mcp-config",
		}
	} else {
		env = nil
	}
	if err := c.start(ctx, env, args...); err != nil {
		return err
	}
	for i := range c.said {
		if i > 0 {
			start = time.Now()
		}
		err := c.send(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": prompt}})
		if err == nil {
			err = c.answer(i, start, `"text_delta"`, `"type":"result"`)
		}
		if err != nil {
			return errors.Join(err, c.end())
		}
	}
	return c.end()
}

func talkToCodex(ctx context.Context, c *conduct) error {
	start := time.Now()
	env, args := []string{"CODEX_HOME=" + c.home}, []string{
		"app-server", "-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false",
		"-c", "features.plugins=false", "-c", "features.apps=false",
		"-c", "features.unbounded_connection_retries=false",
	}
	if c.args != nil {
		env, args = nil, c.args
	}
	if err := c.start(ctx, env, args...); err != nil {
		return err
	}
	err := c.talkToCodex(start)
	return errors.Join(err, c.end())
}

func (c *conduct) talkToCodex(start time.Time) error {
	type object = map[string]any
	url := c.variable("OPENAI_BASE_URL")
	err := c.send(object{"id": 1, "method": "initialize", "params": object{"clientInfo": object{"name": "bench", "version": "1"}}})
	if err == nil {
		_, err = c.until(`"id":1`)
	}
	if err != nil {
		return err
	}
	config := object{"model_provider": "bench", "model_providers": object{"bench": object{
		"name": "OpenAI", "base_url": url, "env_key": "OPENAI_API_KEY", "wire_api": "responses",
	}}}
	err = errors.Join(
		c.send(object{"method": "initialized"}),
		c.send(object{"id": 2, "method": "thread/start", "params": object{"cwd": c.dir, "model": "gpt-5.5", "approvalPolicy": "untrusted", "sandbox": "workspace-write", "config": config}}),
	)
	if err != nil {
		return err
	}
	line, err := c.until(`"id":2`)
	if err != nil {
		return err
	}
	var reply struct {
		Result struct{ Thread struct{ ID string } }
	}
	if err := json.Unmarshal(line, &reply); err != nil || reply.Result.Thread.ID == "" {
		return fmt.Errorf("it said %s: %w", line, err)
	}
	for i := range c.said {
		if i > 0 {
			start = time.Now()
		}
		err := c.send(object{"id": 3 + i, "method": "turn/start", "params": object{
			"threadId": reply.Result.Thread.ID, "input": []object{{"type": "text", "text": prompt}},
		}})
		if err == nil {
			err = c.answer(i, start, `agentMessage/delta`, `"turn/completed"`)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
