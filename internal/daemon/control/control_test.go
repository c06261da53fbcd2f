package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func TestListen(t *testing.T) {
	old := syscall.Umask(0)
	t.Cleanup(func() { syscall.Umask(old) })
	path := filepath.Join(t.TempDir(), "run", "daemon.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	resp, err := Client(path).Get("http://daemon/command")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "/command" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := Listen(t.Context(), path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
}

// TestListenReplacesAStaleSocketOnly: also when the context has ended, as that of a daemon that is
// stopped while it starts, and still has to remove what a killed one left in the kernel.
func TestListenReplacesAStaleSocketOnly(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, ctx := range map[string]context.Context{"open": t.Context(), "ended": ended} {
		path := filepath.Join(t.TempDir(), "daemon.sock")
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		syscall.Close(fd) // as after kill -9: the file stays
		l, err := Listen(ctx, path)
		if err != nil {
			t.Fatalf("context %s: %v", name, err)
		}
		if _, err := Listen(ctx, path); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("context %s, a second listener: %v", name, err)
		}
		l.Close()
		if err := os.WriteFile(path, []byte("a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(ctx, path); err == nil {
			t.Errorf("context %s: a file was replaced", name)
		}
	}
}

// TestListenBesideAnotherUser: a daemon of the units starts where root's, started by hand and killed,
// has left its socket; but not beside one that listens, which it cannot connect to.
func TestListenBesideAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir := t.TempDir()
	for at := filepath.Dir(dir); at != "/"; at = filepath.Dir(at) { // others may search those above
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "daemon.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	listen := func() error {
		runtime.LockOSThread() // Listen does not leave the thread
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(nobody); err != nil {
			return err
		}
		defer syscall.Setfsuid(0)
		other, err := Listen(t.Context(), path)
		if err == nil {
			err = other.Close()
		}
		return err
	}
	if err := listen(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("beside a daemon of root's: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := listen(); err != nil {
		t.Errorf("after a killed daemon of root's: %v", err)
	}
}
