// Package feature has the error for a feature that a kernel, a host or a process lacks: the
// feature, the reason and the remedy.
//
// It does not probe. The adapter that uses a feature probes it, and returns an Error if it is
// missing; commands print the Error, and doctor shows its parts.
package feature

import "errors"

// Error is returned when a feature is not available. It matches errors.ErrUnsupported; use
// errors.As for its parts.
type Error struct {
	// Feature is what is missing, for example "MPTCP" or "SRv6 End.DT6".
	Feature string
	// Reason is why it is not available. It may be empty if Err gives the reason.
	Reason string
	// Remedy is the remedy, as an instruction: "use Linux 5.6 or newer", "sysctl -w
	// net.mptcp.enabled=1".
	Remedy string
	// Err is the error of the kernel, or nil.
	Err error
}

// Error returns "FEATURE is not available: REASON: ERR; REMEDY" without empty parts.
func (e *Error) Error() string {
	s := e.Cause()
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Cause returns Error without the remedy, for output that shows the remedy separately.
func (e *Error) Cause() string {
	s := e.Feature + " is not available"
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported }
