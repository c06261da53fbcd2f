// Package dashboard serves one web page with the state of a host's daemons: the network as they see
// it, the rate over each egress path and subflow, routes, events, and what is degraded and why.
//
// It reads only what daemons serve at their status addresses and what the flow counter reports. It
// controls no daemon, and keeps its history in memory.
package dashboard

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/epe/flows"
)

const (
	// interval is the time between two requests for a daemon's status, and the width of a sample
	// of a rate.
	interval = time.Second
	// samples is how many samples of a rate are kept: 5 minutes.
	samples = 300
	// maxEvents, maxSubflows and maxNetworks bound what is kept and shown.
	maxEvents, maxSubflows, maxNetworks = 200, 50, 50
)

// Daemon is a daemon to show.
type Daemon struct {
	Name string
	At   netip.AddrPort // its status address
	// Optional daemons are shown only while they answer.
	Optional bool
}

// Options configure a Dashboard.
type Options struct {
	Daemons []Daemon
	// Ask requests a path, with its query, from a status address.
	Ask func(ctx context.Context, at netip.AddrPort, path string) ([]byte, error)
	// Uncounted is why Count is not called; empty if it is.
	Uncounted string
}

// Dashboard collects what the page shows. It is safe for concurrent use.
type Dashboard struct {
	opt  Options
	host string

	mu      sync.Mutex
	daemons []daemon
	events  []event
	rates   rates
	lines   lines
}

// daemon is the last known state of a Daemon.
type daemon struct {
	Daemon
	answered bool // at least once
	// fault is why the last request failed; empty if it did not.
	fault  string
	status status
	raw    json.RawMessage
}

// New returns a Dashboard. Run collects for it and Handler serves it.
func New(o Options) *Dashboard {
	d := &Dashboard{opt: o, rates: newRates(), lines: lines{}}
	d.host, _ = os.Hostname() // only a title
	for _, one := range o.Daemons {
		d.daemons = append(d.daemons, daemon{Daemon: one})
	}
	return d
}

// Run asks the daemons for their status, once a second each, until the context ends.
func (d *Dashboard) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for i := range d.daemons {
		wg.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				d.poll(ctx, i)
				tick.Reset(interval) // not at once after a slow answer
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// poll asks one daemon. A slow daemon delays no other.
func (d *Dashboard) poll(ctx context.Context, i int) {
	asked := time.Now()
	raw, err := d.opt.Ask(ctx, d.opt.Daemons[i].At, "/status")
	var now status
	if err == nil {
		err = json.Unmarshal(raw, &now)
	}
	if err == nil && now.Role == "gateway" {
		err = json.Unmarshal(raw, &now.gatewayStatus)
	}
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one := &d.daemons[i]
	if err != nil {
		if one.answered && one.fault == "" {
			d.record(one.Name, bad, "does not answer: "+err.Error())
		}
		one.fault = err.Error()
		d.lines.silent(one.Name)
		return
	}
	switch {
	case !one.answered:
		d.record(one.Name, now.level(), "answers, "+now.state())
	case one.fault != "":
		d.record(one.Name, now.level(), "answers again, "+now.state())
	default:
		for _, c := range compare(one.status, now) {
			d.record(one.Name, c.level, c.text)
		}
	}
	one.answered, one.fault, one.status, one.raw = true, "", now, raw
	d.rates.rename(d.daemons)
	d.lines.add(one.Name, now.paths(), asked, time.Now())
}

// record adds an event. Callers hold mu.
func (d *Dashboard) record(name string, l level, text string) {
	if len(d.events) == maxEvents {
		d.events = append(d.events[:0], d.events[1:]...)
	}
	d.events = append(d.events, event{Time: time.Now().UnixMilli(), Daemon: name, Level: l, Text: text})
}

// Count adds a snapshot of the flow counter; it is a flows.Options.Sink.
func (d *Dashboard) Count(s *flows.Snapshot) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rates.add(s)
	return nil
}

// state is what the page shows.
type state struct {
	Time    int64         `json:"time"` // Unix time in milliseconds
	Host    string        `json:"host"`
	Daemons []daemonState `json:"daemons"`
	// Uncounted is why there are no rates.
	Uncounted string    `json:"uncounted,omitempty"`
	Paths     []series  `json:"paths"`
	Subflows  []subflow `json:"subflows"`
	// Lines are the paths of gateways, LinesLeft counts those beyond maxLines.
	Lines     []line `json:"lines"`
	LinesLeft int    `json:"lines_left_out"`
	// Left counts the subflows beyond maxSubflows.
	Left   int     `json:"subflows_left_out"`
	Events []event `json:"events"`
}

// daemonState is a daemon in a state.
type daemonState struct {
	Name  string          `json:"name"`
	At    netip.AddrPort  `json:"at"`
	Fault string          `json:"fault,omitempty"`
	State json.RawMessage `json:"status,omitempty"`
}

func (d *Dashboard) state() state {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := state{Time: time.Now().UnixMilli(), Host: d.host, Uncounted: d.opt.Uncounted, Events: append([]event{}, d.events...), Daemons: []daemonState{}}
	for _, one := range d.daemons {
		if one.Optional && !one.answered {
			continue
		}
		s.Daemons = append(s.Daemons, daemonState{Name: one.Name, At: one.At, Fault: one.fault, State: one.raw})
	}
	s.Paths, s.Lines = d.rates.series(), d.lines.list()
	for i := range d.daemons {
		s.LinesLeft += max(0, len(d.daemons[i].status.gatewayStatus.Paths)-maxLines)
	}
	s.Subflows, s.Left = d.rates.subflows, d.rates.left
	return s
}
