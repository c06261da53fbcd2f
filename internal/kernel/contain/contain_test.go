package contain

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/base/health"
)

// faulty is a function with a bug.
func faulty() { var none []int; none[3]++ }

func reason() string {
	var r health.Report
	Report(&r)
	return r.Status().Reason
}

// TestContained: a panic is returned, counted, logged with its message once a minute, and reported
// for an hour or until it is acknowledged.
func TestContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer Acknowledge()
		var logged strings.Builder
		log := slog.New(slog.NewTextHandler(&logged, nil))
		before := Counts()[RPKI]
		if err := Do(RPKI, log, nil, func() {}); err != nil || reason() != "" {
			t.Fatalf("without a panic: %v, %q", err, reason())
		}
		long := make([]byte, 2*maxLogged)
		long[0] = 0xab
		for range 3 {
			err := Do(RPKI, log, long, faulty)
			var e *Error
			if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "BUG: runtime error: index out of range") || !strings.Contains(e.Stack, "contain.faulty (contain_test.go:") {
				t.Fatalf("error %v", err)
			}
		}
		if n := Counts()[RPKI] - before; n != 3 {
			t.Errorf("%d panics counted, want 3", n)
		}
		if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "message=ab00") || logged.Len() > 3*maxLogged {
			t.Errorf("%d lines, %d bytes logged, want one with the message: %.200s", n, logged.Len(), logged.String())
		}
		if got := reason(); !strings.HasPrefix(got, "3 panics contained (rpki 3), the last 0s ago: BUG: runtime error") {
			t.Errorf("reason %q", got)
		}
		time.Sleep(logPause)
		_ = Do(RPKI, log, nil, func() { panic("BUG: impossible") })
		if !strings.Contains(logged.String(), "not_logged=2") || strings.Contains(logged.String(), "BUG: BUG") {
			t.Errorf("logged %s", logged.String()[2*maxLogged:])
		}
		Acknowledge()
		if got := reason(); got != "" {
			t.Errorf("acknowledged: %q", got)
		}
		_ = Do(RPKI, nil, nil, faulty)
		time.Sleep(degradedFor - time.Nanosecond)
		if got := reason(); !strings.HasPrefix(got, "1 panics") {
			t.Errorf("before an hour: %q", got)
		}
		time.Sleep(time.Nanosecond)
		if got := reason(); got != "" {
			t.Errorf("after an hour: %q", got)
		}
		_ = Do(BFD, nil, nil, faulty)
		if got := reason(); !strings.HasPrefix(got, "1 panics contained (bfd 1)") {
			t.Errorf("a new one after an hour: %q", got)
		}
	})
}

// TestPanicWithoutLogger: a panic that nothing logs does not keep the next one from being logged.
func TestPanicWithoutLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer Acknowledge()
		var logged strings.Builder
		_ = Do(Capture, nil, nil, faulty)
		_ = Do(Capture, slog.New(slog.NewTextHandler(&logged, nil)), nil, faulty)
		if !strings.Contains(logged.String(), "boundary=capture") || !strings.Contains(logged.String(), "not_logged=1") {
			t.Errorf("logged %q", logged.String())
		}
	})
}

// TestAgain: a panic that reaches the boundary of who waits for the result is counted once.
func TestAgain(t *testing.T) {
	defer Acknowledge()
	before := Counts()[Request]
	inner := Do(Request, nil, nil, faulty)
	outer := Do(Request, nil, nil, func() { Again(inner) })
	if n := Counts()[Request] - before; n != 1 || !errors.Is(outer, inner) {
		t.Errorf("%d panics counted, %v returned for %v", n, outer, inner)
	}
}

func TestBackoff(t *testing.T) {
	var b Backoff
	now := time.Unix(0, 0).Add(24 * time.Hour)
	if b.Until().After(now) {
		t.Error("closed without a panic")
	}
	var pauses []time.Duration
	for range 8 {
		b.Panicked(now)
		pauses = append(pauses, b.Until().Sub(now))
		now = b.Until().Add(time.Second)
	}
	if pauses[0] != firstPause || pauses[1] != 2*firstPause || pauses[7] != maxPause {
		t.Errorf("pauses %v", pauses)
	}
	now = now.Add(forgetAfter)
	if b.Panicked(now); b.Until().Sub(now) != firstPause {
		t.Errorf("after an hour: %v", b.Until().Sub(now))
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for b := range Boundary(boundaries) {
		if name := b.String(); name == "" || seen[name] {
			t.Errorf("boundary %d is named %q", b, name)
		}
		seen[b.String()] = true
	}
}

// BenchmarkPoint is what the hook of tests costs in production.
func BenchmarkPoint(b *testing.B) {
	message := make([]byte, 100)
	for b.Loop() {
		Point(BGPSession, message)
	}
}

// BenchmarkDo is what a boundary costs.
func BenchmarkDo(b *testing.B) {
	n := 0
	for b.Loop() {
		_ = Do(BGPSession, nil, nil, func() { n++ })
	}
}
