//go:build !linux

package testmodal

import "errors"

func (sb *sandbox) snapshot() (*image, error) { return nil, errors.ErrUnsupported }

func (sb *sandbox) snapshotDirectory(string) (*image, error) { return nil, errors.ErrUnsupported }

func (sb *sandbox) mountImage(string, *image) error { return errors.ErrUnsupported }

func (sb *sandbox) unmountImage(string) error { return errors.ErrUnsupported }
