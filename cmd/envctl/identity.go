package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
)

// identityFlags are the flags by which a new sandbox is found again.
type identityFlags struct {
	name, idFile string
}

func (f *identityFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.name, "name", "", "name of the sandbox, which does for its ID everywhere")
	fl.StringVar(&f.idFile, "id-file", "", "write the ID of the sandbox to this file, which must not exist")
}

// apply sets the name. It fails if the ID file exists, before anything is created.
func (f *identityFlags) apply(cfg *environment.Config) error {
	if f.name != "" {
		cfg.Name = f.name
	}
	if f.idFile == "" {
		return nil
	}
	if _, err := os.Lstat(f.idFile); err == nil {
		return usagef("--id-file: %s exists; remove it, or the sandbox that it names is forgotten", f.idFile)
	}
	return nil
}

// write writes the ID of a new sandbox, or of a new session of a server, to the ID file.
func (f *identityFlags) write(id string) (err error) {
	if f.idFile == "" {
		return nil
	}
	file, err := os.OpenFile(f.idFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("--id-file: %w", err)
	}
	_, err = fmt.Fprintln(file, id)
	return errors.Join(err, file.Close())
}
