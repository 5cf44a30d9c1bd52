//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const jsonlLines = 200_000

// events returns JSONL of 200-byte events, most of them chunks of a message.
func events() []byte {
	var b bytes.Buffer
	for i := range jsonlLines {
		line := fmt.Sprintf(`{"type":"agent_message_chunk","payload":{"blockId":"msg_%06d-0","content":{"type":"text","text":"`, i)
		tail := `"}},"session_id":"0b9d2c7e","conversation_id":"main","time":"2026-01-02T03:04:05.678Z"}`
		line += strings.Repeat("x", max(0, 199-len(line)-len(tail))) + tail
		b.WriteString(line + "\n")
	}
	return b.Bytes()
}

// benchJSONL compares lazy and typed reading of events with encoding/json.
func benchJSONL(context.Context) ([]row, error) {
	data := events()
	var allocs float64
	base, lazy, err := interleave(3,
		func() error { return decodeStd(data) },
		func() error { return decodeLazy(data) })
	if err != nil {
		return nil, err
	}
	allocs = testing.AllocsPerRun(1, func() { err = decodeLazy(data) }) / jsonlLines
	if err != nil {
		return nil, err
	}
	_, typed, err := interleave(3,
		func() error { return nil },
		func() error { return decodeTyped(data) })
	if err != nil {
		return nil, err
	}
	million := jsonlLines / 1e6
	return []row{
		ratioRow("JSONL lazy", "encoding/json", "M lines/s", higher, rate(million, base), rate(million, lazy), 38),
		limitRow("JSONL lazy", "M lines/s", higher, rate(million, lazy), 10),
		limitRow("JSONL lazy, allocations a line", "allocs", lower, allocs, 0.001),
		limitRow("JSONL typed", "M lines/s", higher, rate(million, typed), 2),
	}, nil
}

func decodeStd(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		var ev runnerscripts.Event
		if err := d.Decode(&ev); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// decodeLazy reads every line and its type, and does not decode the rest.
func decodeLazy(data []byte) error {
	lines := runnerscripts.NewLineReader(bytes.NewReader(data), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if runnerscripts.TypeOf(line) != runnerscripts.TypeAgentMessage {
			return fmt.Errorf("a line of type %q", runnerscripts.TypeOf(line))
		}
	}
}

func decodeTyped(data []byte) error {
	d := runnerscripts.NewDecoder(bytes.NewReader(data), 0)
	for {
		if _, err := d.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
