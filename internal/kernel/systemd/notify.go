// Package systemd informs the service manager about the state of this process (sd_notify(3)).
//
// It does nothing where no service manager asks for that, and does not watch or start anything.
package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/tabane/tabane/internal/kernel/clock"
)

// Notifier sends states to the socket in NOTIFY_SOCKET. It is safe for concurrent use.
type Notifier struct{ socket string }

// New returns the Notifier of this process. It removes NOTIFY_SOCKET from the environment, so that
// children do not notify in its name.
func New() (Notifier, error) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return Notifier{}, err
	}
	if socket != "" && !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return Notifier{}, fmt.Errorf("NOTIFY_SOCKET %q is neither a path nor an abstract address", socket)
	}
	return Notifier{socket}, nil
}

// Ready reports that the service has started, or completed a reload. The status is one line for
// people.
func (n Notifier) Ready(status string) error {
	return n.send("READY=1\nSTATUS=" + strings.ReplaceAll(status, "\n", "; "))
}

// Reloading reports that a reload begins; Ready follows it.
func (n Notifier) Reloading() error {
	return n.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", clock.Monotonic().Microseconds()))
}

// MainPID reports that another process is the service's main one now.
func (n Notifier) MainPID(pid int) error { return n.send(fmt.Sprintf("MAINPID=%d\nREADY=1", pid)) }

// Environment returns the variables with which a process that replaces this one can notify.
func (n Notifier) Environment() []string {
	if n.socket == "" {
		return nil
	}
	return []string{"NOTIFY_SOCKET=" + n.socket}
}

// Stopping reports that a clean stop begins.
func (n Notifier) Stopping() error { return n.send("STOPPING=1") }

func (n Notifier) send(state string) error {
	if n.socket == "" {
		return nil
	}
	// The net package translates a leading @ to the NUL of an abstract address.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
