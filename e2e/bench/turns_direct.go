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
	"net/http"
	"strings"
	"syscall"
	"time"
)

// run runs the program with these arguments until it exits.
func (c *conduct) run(ctx context.Context, args []string) error {
	if err := c.start(ctx, nil, args...); err != nil {
		return err
	}
	_ = c.stdin.Close()
	said, err := io.ReadAll(c.lines)
	if err == nil && len(said) == 0 {
		err = errors.New("it printed nothing")
	}
	return errors.Join(err, c.cmd.Wait())
}

// talkToGemini speaks ACP.
func talkToGemini(ctx context.Context, c *conduct) error {
	start := time.Now()
	if err := c.start(ctx, nil, c.args...); err != nil {
		return err
	}
	return errors.Join(c.talkToGemini(start), c.end())
}

func (c *conduct) talkToGemini(start time.Time) error {
	type object = map[string]any
	ask := func(id int, method string, params object) ([]byte, error) {
		if err := c.send(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params}); err != nil {
			return nil, err
		}
		return c.until(fmt.Sprintf(`"id":%d,`, id))
	}
	if _, err := ask(1, "initialize", object{"protocolVersion": 1, "clientInfo": object{"name": "bench", "version": "1"}}); err != nil {
		return err
	}
	line, err := ask(2, "session/new", object{"cwd": c.dir, "mcpServers": []object{}})
	if err != nil {
		return err
	}
	var reply struct{ Result struct{ SessionID string } }
	if err := json.Unmarshal(line, &reply); err != nil || reply.Result.SessionID == "" {
		return fmt.Errorf("it said %s: %w", line, err)
	}
	if err := c.send(object{"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": object{
		"sessionId": reply.Result.SessionID, "prompt": []object{{"type": "text", "text": prompt}},
	}}); err != nil {
		return err
	}
	return c.answer(0, start, `"agent_message_chunk"`, `"id":3,`)
}

// talkToOpenCode speaks to the server of "opencode serve".
func talkToOpenCode(ctx context.Context, c *conduct) error {
	start := time.Now()
	if err := c.start(ctx, nil, c.args...); err != nil {
		return err
	}
	err := c.talkToOpenCode(ctx, start)
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it does not end at EOF
	_ = c.stdin.Close()
	_ = c.cmd.Wait() // it ended by the signal
	return err
}

func (c *conduct) talkToOpenCode(ctx context.Context, start time.Time) error {
	type object = map[string]any
	line, err := c.until("listening on http://")
	if err != nil {
		return err
	}
	_, url, _ := strings.Cut(strings.TrimSpace(string(line)), "listening on ")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	send := func(method, path string, body object) (*http.Response, error) {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.SetBasicAuth(c.variable("OPENCODE_SERVER_USERNAME"), c.variable("OPENCODE_SERVER_PASSWORD"))
		return client.Do(req)
	}
	events, err := send(http.MethodGet, "/event", nil)
	if err != nil {
		return err
	}
	defer events.Body.Close()
	made, err := send(http.MethodPost, "/session", object{})
	if err != nil {
		return err
	}
	var session struct{ ID string }
	err = errors.Join(json.NewDecoder(made.Body).Decode(&session), made.Body.Close())
	if err != nil {
		return err
	}
	took, err := send(http.MethodPost, "/session/"+session.ID+"/prompt_async", object{
		"model": object{"providerID": "scripted", "modelID": "small"}, "parts": []object{{"type": "text", "text": prompt}},
	})
	if err != nil {
		return err
	}
	if err := took.Body.Close(); err != nil {
		return err
	}
	c.lines = bufio.NewReaderSize(events.Body, 1<<20)
	return c.answer(0, start, `"message.part.delta"`, `"session.idle"`)
}
