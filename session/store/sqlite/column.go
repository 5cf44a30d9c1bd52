package sqlite

import (
	"bytes"
	"errors"
)

// errColumn: a column holds a value of another type than it was given, so the row was damaged. It
// quotes nothing that is stored, other than the errors of database/sql.
var errColumn = errors.New("a value of another type")

// column scans one column.
type column func(v any) error

// Scan implements sql.Scanner.
func (c column) Scan(v any) error { return c(v) }

func text(to *string) column {
	return func(v any) error {
		s, ok := v.(string)
		if !ok {
			return errColumn
		}
		*to = s
		return nil
	}
}

func integer[T ~int64 | ~uint64 | ~uint32](to *T) column {
	return func(v any) error {
		n, ok := v.(int64)
		if !ok {
			return errColumn
		}
		*to = T(n)
		return nil
	}
}

// raw scans bytes; NULL is nil.
func raw(to *[]byte) column {
	return func(v any) error {
		b, ok := v.([]byte)
		if !ok && v != nil {
			return errColumn
		}
		*to = bytes.Clone(b)
		return nil
	}
}
