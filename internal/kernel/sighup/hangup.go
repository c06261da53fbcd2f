// Package sighup receives SIGHUP from the first moment of a process at which Go can: while packages
// are initialized, before main. A daemon whose file was changed right after its start must not be
// terminated by the request to reload it.
//
// Before that, in the runtime's own start, SIGHUP terminates the process unless its parent ignores
// the signal, as nohup does: it then has no effect until this package receives it.
package sighup

import (
	"os"
	"os/signal"
	"syscall"
)

var received = make(chan os.Signal, 1)

// The order of initialization is by import path among packages whose imports are initialized: this
// one imports as little as possible.
func init() { signal.Notify(received, syscall.SIGHUP) }

// Received returns the channel of hangups. It holds one: those that follow before it is read are
// dropped.
func Received() <-chan os.Signal { return received }

// Default restores the effect that SIGHUP had when the process started, which also applies to one
// that was received already.
func Default() {
	signal.Reset(syscall.SIGHUP)
	select {
	case <-received:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGHUP) // it cannot fail
	default:
	}
}
