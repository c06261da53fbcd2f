package systemd

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestNotify(t *testing.T) {
	for name, socket := range map[string]string{
		"path": filepath.Join(t.TempDir(), "notify"), "abstract": "@tabane-test-" + filepath.Base(t.TempDir()),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			t.Setenv("NOTIFY_SOCKET", socket)
			n, err := New()
			if err != nil {
				t.Fatal(err)
			}
			if _, there := os.LookupEnv("NOTIFY_SOCKET"); there {
				t.Error("children inherit the socket")
			}
			for _, step := range []struct {
				send func() error
				want string
			}{
				{func() error { return n.Ready("reload rejected:\nasn") }, "^READY=1\nSTATUS=reload rejected:; asn$"},
				{n.Reloading, `^RELOADING=1` + "\n" + `MONOTONIC_USEC=[1-9]\d+$`},
				{n.Stopping, "^STOPPING=1$"},
			} {
				if err := step.send(); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 1000)
				size, err := l.Read(b)
				if err != nil || !regexp.MustCompile(step.want).Match(b[:size]) {
					t.Errorf("got %q, %v, want %q", b[:size], err, step.want)
				}
			}
		})
	}
}

func TestNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := New()
	if err != nil || n.Ready("") != nil || n.Reloading() != nil || n.Stopping() != nil {
		t.Errorf("%v, %v", n, err)
	}
	t.Setenv("NOTIFY_SOCKET", "vsock:2:1234")
	if n, err := New(); err == nil {
		t.Errorf("got %v", n)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	if n, err = New(); err != nil || n.Stopping() == nil {
		t.Errorf("nobody listens: %v, %v", n, err)
	}
}
