package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
)

// outputFlags name the schema of the last prompt's output.
type outputFlags struct{ schema string }

func (f *outputFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.schema, "output-schema", "", "end the last prompt with JSON that matches the JSON schema in this file, and print only that")
	_ = cmd.MarkFlagFilename("output-schema", "json")
}

// readSchema reads the schema, and checks that the configured agent takes it; nil for none.
func (f *outputFlags) readSchema(cfg environment.Config) (json.RawMessage, error) {
	if f.schema == "" {
		return nil, nil
	}
	data, err := readAttachment(f.schema, environment.MaxOutputSchema)
	if err != nil {
		return nil, usagef("--output-schema: %w", err)
	}
	if len(data) == 0 {
		return nil, usagef("--output-schema: %s is empty; write a JSON schema into it", f.schema)
	}
	schema, err := cfg.CheckOutputSchema(data)
	if err != nil {
		return nil, usagef("--output-schema: %s: %w", f.schema, err)
	}
	return schema, nil
}

// withPrompts is readSchema for prompts that may be missing, and for an agent that is not known yet.
func (f *outputFlags) withPrompts(prompts []string) (json.RawMessage, error) {
	if f.schema != "" && len(prompts) == 0 {
		return nil, usagef("--output-schema: it is for the answer to a prompt; give a prompt")
	}
	return f.readSchema(environment.Config{})
}

// endsWith gives the last prompt a schema. People then get its output on standard output, and all else on standard error.
func (v *view) endsWith(schema json.RawMessage) {
	v.schema = schema
	if p, ok := v.show.(*textPrinter); ok && len(schema) > 0 {
		p.output, p.out, p.said.out = p.out, p.err, p.err
	}
}

// query returns the prompt with what comes with it: attachments with the first one, the schema with the last.
func (v *view) query(prompt string, last bool) environment.Query {
	q := environment.Query{Prompt: prompt, Attachments: v.attachments}
	v.attachments = nil
	if last {
		q.OutputSchema = v.schema
	}
	return q
}

// refused returns the error of a prompt as one of the command line if the agent does not accept what comes with it.
func refused(err error, q environment.Query) error {
	switch {
	case !errors.Is(err, errors.ErrUnsupported):
	case len(q.OutputSchema) > 0:
		return usagef("--output-schema: %w", err)
	case len(q.Attachments) > 0:
		return usagef("--attach: %w", err)
	}
	return err
}
