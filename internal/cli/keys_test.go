package cli

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newTerminal returns both sides of a pseudoterminal.
func newTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestOnKey(t *testing.T) {
	master, slave := newTerminal(t)
	termios := func() unix.Termios {
		got, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return *got
	}
	before := termios()
	pressed := make(chan bool, 4)
	restore, active := onKey(slave, 'q', func() { pressed <- true })
	if !active {
		t.Fatal("not active on a terminal")
	}
	if got := termios(); got.Lflag&(unix.ICANON|unix.ECHO) != 0 || got.Lflag&unix.ISIG == 0 || got.Oflag != before.Oflag {
		t.Errorf("local flags %#x, output flags %#x", got.Lflag, got.Oflag)
	}
	if _, err := master.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-pressed:
	case <-time.After(10 * time.Second):
		t.Fatal("q has no effect")
	}
	if len(pressed) > 0 {
		t.Error("x has an effect")
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if got := termios(); got != before {
		t.Errorf("restored %+v, want %+v", got, before)
	}
	// The key ends the goroutine's read.
	if _, err := master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
}

func TestOnKeyWithoutTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, active := onKey(r, 'q', func() { t.Error("called") }); active {
		t.Error("active on a pipe")
	}
}
