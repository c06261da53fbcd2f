package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/epe/edge"
)

// borrowPath has an edge deliver to a client by a mode (POST), or as before (DELETE), and names the
// modes (GET).
const borrowPath = "/borrow"

// borrowable is a machine whose delivery to a client a measurement may borrow.
type borrowable interface {
	BorrowedModes(ctx context.Context) ([]string, error)
	Borrow(ctx context.Context, client netip.Addr, mode string) error
	Return(ctx context.Context, client netip.Addr) error
}

// borrowCommands adds the commands of a measurement.
func borrowCommands(mux *http.ServeMux, m borrowable, answer func(func(*http.Request) (string, error)) http.HandlerFunc) {
	of := func(f func(r *http.Request, client netip.Addr) error) http.HandlerFunc {
		return answer(func(r *http.Request) (string, error) {
			client, err := netip.ParseAddr(r.URL.Query().Get("client"))
			if err != nil || client.Zone() != "" {
				return "", fmt.Errorf("want the address of a client, got %q", r.URL.Query().Get("client"))
			}
			return "", f(r, client.Unmap())
		})
	}
	mux.HandleFunc("GET "+borrowPath, answer(func(r *http.Request) (string, error) {
		names, err := m.BorrowedModes(r.Context())
		return strings.Join(names, "\n"), err
	}))
	mux.HandleFunc("POST "+borrowPath, of(func(r *http.Request, client netip.Addr) error {
		return m.Borrow(r.Context(), client, r.URL.Query().Get("mode"))
	}))
	mux.HandleFunc("DELETE "+borrowPath, of(func(r *http.Request, client netip.Addr) error { return m.Return(r.Context(), client) }))
}

// edgeDelivery is the measure.Delivery by an edge of this host. Its modes are of a client's
// address, so that all connections of that address have the mode meanwhile. Others are those of
// the connection.
type edgeDelivery struct {
	at  netip.AddrPort
	log *slog.Logger
	// connection, if set, has the modes of connections.
	connection measure.Delivery

	mu sync.Mutex
	// names are those that the edge had last, and asked when that was.
	names []string
	asked time.Time
	// users are the clients with a mode, by their address.
	users map[netip.Addr]*edgeUse
}

// edgeUse is a mode of a client.
type edgeUse struct {
	mode  string
	users int // transfers
}

const (
	// renewEvery is how often a delivery is renewed: twice may fail.
	renewEvery = edge.BorrowedFor / 3
	// namesFor is for how long the names of an edge's modes are known: they are asked for with each
	// transfer.
	namesFor = 5 * time.Second
	// edgePatience bounds a command to the edge.
	edgePatience = 5 * time.Second
)

// Names implements measure.Delivery.
func (d *edgeDelivery) Names() []string {
	var names []string
	if d.connection != nil {
		names = d.connection.Names()
	}
	return append(slices.Clone(names), d.modes()...)
}

func (d *edgeDelivery) modes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.asked) < namesFor {
		return d.names
	}
	lines, err := d.command(context.Background(), http.MethodGet, netip.Addr{}, "")
	if err != nil {
		d.log.Debug("the edge does not name its modes", "address", d.at, "err", err)
	}
	d.names, d.asked = lines, time.Now()
	return lines
}

func (d *edgeDelivery) command(ctx context.Context, method string, client netip.Addr, mode string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, edgePatience)
	defer cancel()
	q := url.Values{}
	if client.IsValid() {
		q.Set("client", client.String())
	}
	if mode != "" {
		q.Set("mode", mode)
	}
	return command(ctx, d.at, method, borrowPath, q)
}

// Deliver implements measure.Delivery. What it borrows it returns when ctx ends, and the edge takes
// it back by itself if this process is killed.
func (d *edgeDelivery) Deliver(ctx context.Context, conn net.Conn, name string) error {
	switch {
	case slices.Contains(d.modes(), name):
	case d.connection == nil:
		return fmt.Errorf("the edge does not have the mode %q any more", name)
	default:
		return d.connection.Deliver(ctx, conn, name)
	}
	at, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return errors.New("it is no TCP connection")
	}
	client := at.AddrPort().Addr().Unmap()
	d.mu.Lock()
	use := d.users[client]
	if use == nil {
		use = &edgeUse{mode: name}
		d.users[client] = use
	}
	use.mode = name // no other client measures meanwhile: see --edge-modes
	use.users++
	d.mu.Unlock()
	_, err := d.command(ctx, http.MethodPost, client, name)
	if err != nil {
		d.release(client, use)
		return err
	}
	go d.renew(ctx, client, use, name)
	return nil
}

// renew keeps a mode until ctx ends or the client has another one.
func (d *edgeDelivery) renew(ctx context.Context, client netip.Addr, use *edgeUse, name string) {
	defer d.release(client, use)
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.mu.Lock()
			replaced := use.mode != name
			d.mu.Unlock()
			if replaced {
				return
			}
			if _, err := d.command(ctx, http.MethodPost, client, name); err != nil && ctx.Err() == nil {
				d.log.Warn("renew the mode of a measured client", "mode", name, "err", err)
			}
		}
	}
}

// release ends the use of a mode by a transfer, and the last one returns what was borrowed.
func (d *edgeDelivery) release(client netip.Addr, use *edgeUse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if use.users--; use.users > 0 || d.users[client] != use {
		return
	}
	delete(d.users, client)
	// Under the lock, so that it does not end what the next transfer borrows.
	if _, err := d.command(context.Background(), http.MethodDelete, client, ""); err != nil {
		d.log.Warn("return the delivery of a measured client: it ends by itself", "after", edge.BorrowedFor, "err", err)
	}
}
