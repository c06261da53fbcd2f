package feature

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestError(t *testing.T) {
	for _, tt := range []struct {
		err         Error
		text, cause string
	}{
		{Error{Feature: "MPTCP"}, "MPTCP is not available", "MPTCP is not available"},
		{Error{Feature: "MPTCP", Reason: "net.mptcp.enabled is 0", Remedy: "set it"},
			"MPTCP is not available: net.mptcp.enabled is 0; set it", "MPTCP is not available: net.mptcp.enabled is 0"},
		{Error{Feature: "TBF", Err: syscall.ENOENT, Remedy: "modprobe sch_tbf"},
			"TBF is not available: no such file or directory; modprobe sch_tbf", "TBF is not available: no such file or directory"},
	} {
		if got := tt.err.Error(); got != tt.text {
			t.Errorf("Error() = %q, want %q", got, tt.text)
		}
		if got := tt.err.Cause(); got != tt.cause {
			t.Errorf("Cause() = %q, want %q", got, tt.cause)
		}
	}
}

func TestErrorMatches(t *testing.T) {
	err := fmt.Errorf("set rate: %w", &Error{Feature: "TBF", Err: syscall.ENOENT})
	if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EPERM) {
		t.Errorf("%v matches the wrong errors", err)
	}
	var missing *Error
	if !errors.As(err, &missing) || missing.Feature != "TBF" {
		t.Errorf("errors.As(%v) = %v", err, missing)
	}
}
