package cli

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// onKey calls f when the key is pressed on a terminal. Until restore is called, the terminal is in
// noncanonical mode without echo; keys for signals still work. It has no effect in a background
// process or if the file is not a terminal; active is then false.
func onKey(terminal *os.File, key byte, f func()) (restore func() error, active bool) {
	none := func() error { return nil }
	fd := int(terminal.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || !foreground(fd) {
		return none, false
	}
	raw := *before
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return none, false
	}
	// A shell resets the terminal when the process is stopped and continued.
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	go func() {
		for range continued {
			if foreground(fd) {
				_ = unix.IoctlSetTermios(fd, unix.TCSETS, &raw)
			}
		}
	}()
	// The read is never canceled, because a terminal does not support deadlines.
	go func() {
		for b := make([]byte, 1); ; {
			n, err := terminal.Read(b)
			if err != nil || n == 0 {
				return
			}
			if b[0] == key {
				f()
			}
		}
	}()
	return func() error {
		signal.Stop(continued)
		close(continued)
		if err := unix.IoctlSetTermios(fd, unix.TCSETS, before); err != nil {
			return fmt.Errorf("restore terminal: %w", err)
		}
		return nil
	}, true
}

// foreground reports whether the process may change the terminal without being stopped (SIGTTOU).
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
