package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/daemon/control"
)

// lender is an edge whose delivery is borrowed.
type lender struct {
	mu    sync.Mutex
	calls []string
}

func (l *lender) add(format string, values ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, fmt.Sprintf(format, values...))
}

func (l *lender) BorrowedModes(context.Context) ([]string, error) {
	return []string{"spread", "through.b"}, nil
}

func (l *lender) Borrow(_ context.Context, client netip.Addr, mode string) error {
	l.add("%s by %s", client, mode)
	if mode == "spread" {
		return errors.New("no route")
	}
	return nil
}

func (l *lender) Return(_ context.Context, client netip.Addr) error {
	l.add("%s back", client)
	return nil
}

// waitFor waits until the edge had these calls.
func (l *lender) waitFor(t *testing.T, want ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		got := slices.Clone(l.calls)
		l.mu.Unlock()
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// TestEdgeDelivery: a server borrows the delivery to a client while it sends, and returns it once
// the last transfer has ended; what the edge refuses is said, and nothing is borrowed then.
func TestEdgeDelivery(t *testing.T) {
	l := &lender{}
	mux := http.NewServeMux()
	borrowCommands(mux, l, func(f func(*http.Request) (string, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			text, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, text)
		}
	})
	path := filepath.Join(t.TempDir(), "edge.sock")
	socket, err := control.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	commands := &http.Server{Handler: mux}
	go func() { _ = commands.Serve(socket) }()
	t.Cleanup(func() { _ = commands.Close() })
	status := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		control.WriteJSON(w, map[string]string{"control": path})
	}))
	t.Cleanup(status.Close)
	d := &edgeDelivery{at: netip.MustParseAddrPort(status.Listener.Addr().String()), log: slog.New(slog.DiscardHandler), users: map[netip.Addr]*edgeUse{}}
	if got := d.Names(); !slices.Equal(got, []string{"spread", "through.b"}) {
		t.Errorf("modes %q", got)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if err := d.Deliver(t.Context(), conn, "spread"); err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("refused: %v", err)
	}
	l.waitFor(t, "127.0.0.1 by spread", "127.0.0.1 back")
	if err := d.Deliver(t.Context(), conn, "spray"); err == nil || !strings.Contains(err.Error(), `does not have the mode "spray"`) {
		t.Errorf("unknown: %v", err)
	}
	one, first := context.WithCancel(t.Context())
	two, second := context.WithCancel(t.Context())
	for _, ctx := range []context.Context{one, two} { // two transfers of parallel connections
		if err := d.Deliver(ctx, conn, "through.b"); err != nil {
			t.Fatal(err)
		}
	}
	borrowed := []string{"127.0.0.1 by spread", "127.0.0.1 back", "127.0.0.1 by through.b", "127.0.0.1 by through.b"}
	l.waitFor(t, borrowed...)
	first()
	second()
	l.waitFor(t, append(borrowed, "127.0.0.1 back")...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.users) != 0 {
		t.Errorf("%d clients have a mode", len(d.users))
	}
}
