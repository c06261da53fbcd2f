package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/lab/emulator"
)

// RelayVerb is the hidden command of the tabane program that calls Relay. An emulated link is a
// separate process because other work in the same process would delay frames.
const RelayVerb = "lab-link"

// relayEnds are the names of the interfaces in an emulated link's namespace, toward its first and
// second end.
var relayEnds = [2]string{"a", "b"}

// relayStatus is the address of a relay's status in its namespace, which has no IPv6.
var relayStatus = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 9120)

func relayFile(dir, link string) string { return filepath.Join(dir, "link-"+link+".json") }

// writeRelay writes the initial configuration of an emulated link's process.
func (l *link) writeRelay(dir string) error {
	if l.relay == nil {
		return nil
	}
	forward, backward := l.shape.Profiles()
	b, err := json.Marshal(emulator.Config{A: relayEnds[0], B: relayEnds[1], Forward: forward, Backward: backward, Seed: l.seed})
	if err != nil {
		return fmt.Errorf("encode link %q: %w", l.name, err)
	}
	return writeFile(relayFile(dir, l.name), b)
}

// Relay runs an emulated link in the namespace of the calling process until ctx ends. file was
// written by writeRelay.
func Relay(ctx context.Context, file string, log *slog.Logger) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("emulate link: %w", err)
	}
	var c emulator.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("emulate link %q: %w", file, err)
	}
	l, err := emulator.New(emulator.Options{Config: c, Log: log})
	if err != nil {
		return fmt.Errorf("emulate link %q: %w", file, err)
	}
	listener, err := net.Listen("tcp", relayStatus.String())
	if err != nil {
		return errors.Join(fmt.Errorf("emulate link %q: %w", file, err), l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/", l.Handler())
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		r, err := l.Report()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		// An error means that the client has closed the connection.
		_ = json.NewEncoder(w).Encode(struct {
			Ready  bool   `json:"ready"`
			Reason string `json:"reason"`
			emulator.Report
		}{r.Connected, "an end of the link is down", r})
	})
	server := &http.Server{Handler: control.OwnHost(mux), ReadHeaderTimeout: time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = l.Run(ctx)
	err = errors.Join(err, server.Close())
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// setRelay changes the shape of an emulated link's process, and removes the black holes from the
// link's interfaces, except those in holes.
func (l *link) setRelay(s scenario.Shape, holes map[spot]bool) error {
	forward, backward := s.Profiles()
	var schedule linkmodel.Schedule
	for _, way := range []struct {
		direction linkmodel.Direction
		linkmodel.Profile
	}{{linkmodel.Forward, forward}, {linkmodel.Backward, backward}} {
		schedule = append(schedule, linkmodel.Step{Direction: way.direction, Change: way.Whole()})
	}
	if err := l.play(context.Background(), schedule); err != nil {
		return fmt.Errorf("shape link %q: %w", l.name, err)
	}
	for _, p := range l.nodePorts() {
		if holes[p.spot()] {
			continue
		}
		gate := l.gate(p)
		if err := netns.Do(gate.netns, func() error { return tc.ClearRate(gate.iface) }); err != nil {
			return fmt.Errorf("shape link %q: %w", l.name, err)
		}
	}
	return nil
}

// report reads the statistics of an emulated link's process.
func (l *link) report(ctx context.Context) (r emulator.Report, _ error) {
	b, err := ask(ctx, l.netns, http.MethodGet, "http://"+relayStatus.String()+"/status", nil)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("decode status: %w", err)
	}
	return r, nil
}

// play starts a schedule on an emulated link and replaces the previous one.
func (l *link) play(ctx context.Context, s linkmodel.Schedule) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = ask(ctx, l.netns, http.MethodPost, "http://"+relayStatus.String()+"/schedule", bytes.NewReader(b))
	return err
}
