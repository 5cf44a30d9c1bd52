package patience_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
)

func TestOutlast(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	patient, free := patience.Outlast(ctx, time.Hour)
	end()
	if err := patient.Err(); err != nil {
		t.Errorf("it ends with its parent: %v", err)
	}
	free()
	if !errors.Is(patient.Err(), context.Canceled) {
		t.Error("it outlasts its own end")
	}

	patient, free = patience.Outlast(ctx, time.Millisecond)
	defer free()
	<-patient.Done()
}
