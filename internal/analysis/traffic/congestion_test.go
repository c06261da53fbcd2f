package traffic

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListenerHasCongestionControl uses what every kernel has.
func TestListenerHasCongestionControl(t *testing.T) {
	at := []netip.AddrPort{netip.MustParseAddrPort("[::1]:0")}
	s, err := New(Options{Listen: at, Congestion: "reno", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	raw, err := s.listeners[0].(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got string
	var failed error
	err = raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
	if err := errors.Join(err, failed); err != nil || got != "reno" {
		t.Errorf("the listener has %q, %v, want reno", got, err)
	}
	if s, err := New(Options{Listen: at, Congestion: "nothing", Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown control: %v, %v", s, err)
	}
}

// TestRequestedCongestionControl asks the server for a control of the connection.
func TestRequestedCongestionControl(t *testing.T) {
	var got string
	var failed error
	inner := handler(nil, slog.New(slog.DiscardHandler))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		raw, err := Connection(r).(*net.TCPConn).SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
		}
		failed = errors.Join(failed, err)
	}))
	s.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, conn)
	}
	s.Start()
	defer s.Close()
	o := FetchOptions{URL: s.URL + "/bytes/1000", Transport: TCP, Congestion: "reno"}
	if r, err := Fetch(t.Context(), o); err != nil || failed != nil || r.Bytes != 1000 || got != "reno" {
		t.Errorf("%d bytes over %q, %v, %v; want 1000 over reno", r.Bytes, got, err, failed)
	}
	o.Congestion = "nothing"
	if _, err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), "set congestion control") {
		t.Errorf("an unknown control: %v", err)
	}
	o.Upload = true
	if _, err := Fetch(t.Context(), o); err == nil {
		t.Error("an upload with a control is accepted")
	}
}
