// Package contain limits what a panic costs. Code that processes the messages, requests and events
// of others runs inside a Boundary: a panic there is counted, logged and returned as an error, and
// the caller closes what the boundary names, a session or a request, so that everything else goes
// on.
//
// It repairs nothing: the caller discards the state that the panic may have left inconsistent. A
// panic while that happens is not contained, and ends the process. Concurrent map writes, a stack
// overflow and a lack of memory end it in any case: the Go runtime does not panic then.
package contain

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/base/health"
)

// Boundary is where a panic is contained. Its name is the label of tabane_panics_total.
type Boundary uint8

const (
	// BGPSession is a message of a BGP neighbor, or one to it.
	BGPSession Boundary = iota
	// BGPRoute is a route that is advertised, or reported to the daemon.
	BGPRoute
	// BGPConnection is a connection that the BGP listener accepts.
	BGPConnection
	// BFD is a packet, a session or a change of state of BFD.
	BFD
	// RPKI is an answer of an RPKI cache.
	RPKI
	// KernelEvent is a message of the kernel about links, addresses or routes.
	KernelEvent
	// Reconcile is a comparison of the desired state with the kernel, or the application of it.
	Reconcile
	// PathManager is an event of the kernel's MPTCP.
	PathManager
	// GatewayMessage is a message of another gateway, or what merged ones have in common.
	GatewayMessage
	// GatewayPacket is a packet of the LAN that goes into the tunnel.
	GatewayPacket
	// GatewayTimer is what a gateway does at a time: probes, keys, held packets, names.
	GatewayTimer
	// Request is a request for a status, for metrics or for content, or a command.
	Request
	// Capture is a packet of a capture.
	Capture
	// ProxyConnection is an event of a connection that the proxy relays.
	ProxyConnection

	boundaries = iota
)

var names = [boundaries]string{
	BGPSession: "bgp-session", BGPRoute: "bgp-route", BGPConnection: "bgp-connection", BFD: "bfd", RPKI: "rpki",
	KernelEvent: "kernel-event", Reconcile: "reconcile", PathManager: "path-manager", GatewayMessage: "gateway-message",
	GatewayPacket: "gateway-packet", GatewayTimer: "gateway-timer", Request: "request", Capture: "capture", ProxyConnection: "proxy-connection",
}

func (b Boundary) String() string { return names[b] }

// Error is a panic that was contained.
type Error struct {
	Boundary Boundary
	// Value is that of the panic.
	Value any
	// Stack has the functions that were running, innermost first, on one line.
	Stack string
}

func (e *Error) Error() string {
	text := fmt.Sprint(e.Value)
	if !strings.HasPrefix(text, bugPrefix) {
		text = bugPrefix + text
	}
	return text
}

// bugPrefix starts the message of a panic that a check of this program raised.
const bugPrefix = "BUG: "

const (
	// logPause is the least time between two panics of a boundary that are logged with message and
	// stack: a sender of one message that panics can send many.
	logPause = time.Minute
	// maxLogged bounds how many bytes of the message are logged.
	maxLogged = 4096
	// maxFrames bounds the logged stack.
	maxFrames = 16
	// degradedFor is how long a panic is reported as a problem of the daemon, unless acknowledged.
	degradedFor = time.Hour
)

// process has the panics of this process. A panic is the process's, whichever value it began in.
var process struct {
	counts [boundaries]atomic.Uint64
	hook   atomic.Pointer[func(Boundary, []byte)]

	mu         sync.Mutex
	logged     [boundaries]time.Time
	suppressed [boundaries]uint64 // since logged
	unread     [boundaries]uint64 // since the last acknowledgment
	last       time.Time          // zero if acknowledged
	lastText   string
}

// Do calls f and returns its panic as an *Error, or nil. The message, which may be nil, is what f
// processes.
func Do(b Boundary, log *slog.Logger, message []byte, f func()) (err error) {
	defer func() { err = Caught(recover(), b, log, message) }()
	Point(b, message)
	f()
	return nil
}

// Go calls f in a goroutine.
func Go(b Boundary, log *slog.Logger, f func()) {
	go func() { _ = Do(b, log, nil, f) }() // it is logged
}

// repeatPause is the pause before Repeat calls a function again.
const repeatPause = time.Second

// Repeat calls f, and again after a pause when it has panicked, until it returns or ctx ends. What
// f must not keep after a panic is in its local variables.
func Repeat(ctx context.Context, b Boundary, log *slog.Logger, f func()) {
	for Do(b, log, nil, f) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(repeatPause):
		}
	}
}

// Every calls f at intervals until ctx ends, also after it has panicked.
func Every(ctx context.Context, interval time.Duration, b Boundary, log *slog.Logger, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = Do(b, log, nil, f) // it is logged
	}
}

// Caught counts and logs what recover returned in a deferred function, and returns it as an *Error,
// or nil if that is nil.
func Caught(value any, b Boundary, log *slog.Logger, message []byte) error {
	if value == nil {
		return nil
	}
	if e, ok := value.(*Error); ok {
		return e // of Again: it was counted there
	}
	e := &Error{Boundary: b, Value: value, Stack: stack()}
	record(e, log, message)
	return e
}

// Again panics with an error of Do in the goroutine that waits for the result, whose boundary it
// reaches without being counted twice.
func Again(err error) {
	if err != nil {
		panic(err)
	}
}

// Count counts a panic that another process of this daemon has contained and logged.
func Count(b Boundary, text string) {
	process.mu.Lock()
	defer process.mu.Unlock()
	count(b, text, time.Now())
}

// count is Count with the mutex locked.
func count(b Boundary, text string, now time.Time) {
	process.counts[b].Add(1)
	if now.Sub(process.last) >= degradedFor {
		process.unread = [boundaries]uint64{}
	}
	process.unread[b]++
	process.last, process.lastText = now, text
}

// record counts a panic and logs it, in full once in logPause.
func record(e *Error, log *slog.Logger, message []byte) {
	now := time.Now()
	b := e.Boundary
	process.mu.Lock()
	count(b, e.Error(), now)
	suppressed := process.suppressed[b]
	full := log != nil && now.Sub(process.logged[b]) >= logPause
	if full {
		process.logged[b], process.suppressed[b] = now, 0
	} else {
		process.suppressed[b]++
	}
	process.mu.Unlock()
	if !full {
		return
	}
	attributes := []any{"boundary", b.String(), "err", e.Error(), "stack", e.Stack}
	if len(message) > 0 {
		attributes = append(attributes, "message", hex.EncodeToString(message[:min(len(message), maxLogged)]), "bytes", len(message))
	}
	if suppressed > 0 {
		attributes = append(attributes, "not_logged", suppressed)
	}
	log.Error("panic contained; please report it", attributes...)
}

// stack returns the functions that were running when the current panic began.
func stack() string {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(0, pc)])
	var lines []string
	panicked := false
	for {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		if panicked && !inRuntime {
			lines = append(lines, fmt.Sprintf("%s (%s:%d)", f.Function[strings.LastIndexByte(f.Function, '/')+1:], filepath.Base(f.File), f.Line))
		}
		panicked = panicked || f.Function == "runtime.gopanic"
		if !more || len(lines) == maxFrames {
			return strings.Join(lines, " < ")
		}
	}
}

// Counts returns how often each boundary contained a panic since the process started.
func Counts() map[Boundary]uint64 {
	all := make(map[Boundary]uint64, boundaries)
	for b := range Boundary(boundaries) {
		all[b] = process.counts[b].Load()
	}
	return all
}

// Report degrades the daemon if there was a panic in the last hour that is not acknowledged.
func Report(r *health.Report) {
	process.mu.Lock()
	defer process.mu.Unlock()
	since := time.Since(process.last)
	if process.last.IsZero() || since >= degradedFor {
		return
	}
	var parts []string
	total := uint64(0)
	for b, n := range process.unread {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", Boundary(b), n))
			total += n
		}
	}
	r.Degrade("%d panics contained (%s), the last %s ago: %s; see the log, and acknowledge with tabane status --acknowledge",
		total, strings.Join(parts, ", "), since.Round(time.Second), process.lastText)
}

// Acknowledge ends the report of the panics so far. The counts stay.
func Acknowledge() {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.last, process.unread = time.Time{}, [boundaries]uint64{}
}

// Point is where Inject's function is called: inside the boundary, with the message. Without one,
// it is a load and a comparison.
func Point(b Boundary, message []byte) {
	if f := process.hook.Load(); f != nil {
		(*f)(b, message)
	}
}

// PointAt is Point in a route, whose text is the message.
func PointAt[T fmt.Stringer](b Boundary, route T) {
	if f := process.hook.Load(); f != nil {
		(*f)(b, []byte(route.String()))
	}
}

// Inject has f called wherever a boundary begins, which may panic, until stop is called. It is for
// tests: no code of the program calls it (the architecture test), so that the linker omits it.
func Inject(f func(Boundary, []byte)) (stop func()) {
	process.hook.Store(&f)
	return func() { process.hook.Store(nil) }
}
