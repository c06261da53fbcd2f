// Package control is the socket that a running daemon takes commands on: HTTP over a Unix socket
// that only the daemon's user and root can connect to. The status address, which anybody may reach,
// takes no commands. Answers on both are JSON.
//
// It does not know the commands.
package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
)

// MaxPath is the longest path of a socket in bytes (struct sockaddr_un without the final NUL).
const MaxPath = 107

// Path returns the path of a daemon's socket: the configured one, or the default if that is empty.
func Path(configured, daemon string) string {
	return cmp.Or(configured, "/run/tabane/"+daemon+".sock")
}

// CheckPath returns what is wrong with a configured path; none is fine.
func CheckPath(path string) fault.List {
	var faults fault.List
	if path != "" && !filepath.IsAbs(path) || len(path) > MaxPath {
		faults.Add("control", "must be an absolute path of at most %d bytes, got %q", MaxPath, path)
	}
	return faults
}

// mode permits the owner alone to connect, which needs write permission (unix(7)).
const mode = 0o600

// dialTimeout bounds the test whether another process has the socket.
const dialTimeout = time.Second

// Listen creates the socket, and its directory if it is missing. It replaces a socket that a killed
// process left behind; one that a process listens on is an error that wraps syscall.EADDRINUSE.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create directory of control socket: %w", err)
	}
	// The mode of an unbound socket becomes that of the file: there is no moment at which others
	// could connect.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), mode) }); e != nil {
			return e
		}
		return err
	}}
	l, err := config.Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && stale(ctx, path) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("replace control socket: %w", err)
		}
		l, err = config.Listen(ctx, "unix", path)
	}
	if info, e := os.Lstat(path); err != nil && e == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on control socket: %q is there, and is no socket; remove it, or give control another path", path)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	return l, nil
}

// stale reports whether path is a socket that no process listens on, also once ctx has ended. That
// of another user cannot be asked, as one that root's killed daemon has left to the units.
func stale(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(context.WithoutCancel(ctx), "unix", path)
	if err == nil {
		_ = c.Close()
	}
	if errors.Is(err, syscall.EACCES) {
		return !listening(filepath.Base(path))
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// listening reports whether a process of this network namespace listens on a socket whose file has a
// name, in any directory: it is known by the path that the process has used.
func listening(name string) bool {
	const accepting = "00010000" // __SO_ACCEPTCON
	list, err := os.ReadFile("/proc/thread-self/net/unix")
	for line := range strings.Lines(string(list)) {
		// Number, references, protocol, flags, type, state, inode, path.
		f := strings.Fields(line)
		if len(f) >= 8 && f[3] == accepting && filepath.Base(strings.TrimSuffix(line, "\n")) == name {
			return true
		}
	}
	return err != nil
}

// Client returns a client whose requests, whatever their host, go to the socket.
func Client(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// WriteJSON answers a request with a value.
func WriteJSON(w http.ResponseWriter, value any) {
	b, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has closed the connection.
	_, _ = w.Write(append(b, '\n'))
}
