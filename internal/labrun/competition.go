package labrun

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/bpf/congestion"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/traffic"
)

// competition is the connections beside that of a cell: it runs them and measures all.
type competition struct {
	*runner
	lab   *lab.Lab
	job   job
	clock *runClock
	// from and to are the time in which all compete, since the start of the run.
	from, to time.Duration

	mu    sync.Mutex
	sides result.Sides
	// arrived are the samples of all connections, of each side.
	arrived [][]arrival
}

// arrival is the bytes of an interval that ended at a time.
type arrival struct {
	at    time.Time
	bytes int64
}

func (r *runner) compete(l *lab.Lab, j job, clock *runClock) *competition {
	e := r.Spec.Experiment
	c := &competition{runner: r, lab: l, job: j, clock: clock}
	c.from, c.to = e.Competition(j.CellKey, r.Quick)
	c.side(e.Client, 1)
	for _, x := range e.Case(j.Case).Connections {
		c.side(x.Client, x.Count())
	}
	return c
}

// side returns the index of the side of a client, the experiment's without a name, after adding n
// connections.
func (c *competition) side(client string, n int) int {
	if client == "" {
		client = c.Spec.Experiment.Client
	}
	at := c.sides.Index(client)
	if at == len(c.arrived) {
		c.arrived = append(c.arrived, nil)
	}
	c.sides[at].Connections += n
	return at
}

// sample records what arrived on a connection of a side.
func (c *competition) sample(side int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived[side] = append(c.arrived[side], arrival{time.Now(), bytes})
}

// run runs the other connections until ctx ends, with the run.
func (c *competition) run(ctx context.Context) error {
	e := c.Spec.Experiment
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, x := range e.Case(c.job.Case).Connections {
		side := c.side(x.Client, 0)
		transport := x.Transport(e.Transports[c.job.Transport], e.Settings(c.job.CellKey))
		args := clientArguments(transport)
		if !x.Own() {
			name, _ := c.offers.control(transport.Settings)
			args = append(args, "--congestion", name)
		}
		if x.Stop > 0 {
			args = append(args, "--limit", (x.Stop - x.Start).String())
		}
		args = append(args, serverURL(c.Spec, transport)+"/bytes/"+fmt.Sprint(int64(e.Traffic[c.job.Traffic].Bytes)))
		for range x.Count() {
			all.Go(func() {
				if x.Start > 0 {
					if _, err := c.clock.until(ctx, x.Start); err != nil {
						return
					}
				}
				report, err := fetch(ctx, c.lab, c.sides[side].Client, args, func(s traffic.Sample) { c.sample(side, int64(s.Bytes)) })
				switch {
				case ctx.Err() != nil:
					return
				case err == nil && report.UsedMPTCP != transport.MPTCP:
					err = errors.New("a competing connection fell back from MPTCP to TCP, or the other way")
				case err != nil:
					err = fmt.Errorf("competing connection of %s: %w", c.sides[side].Client, err)
				}
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// watched is what is known of a subflow.
type watched struct {
	side             int
	first            bool
	losses           int64
	repairs          uint64
	before, after    uint64 // acknowledged bytes at the ends of the time
	began            bool
	roundTrips, seen time.Duration // sum and number
}

// watchEvery is how often the subflows of a competition are read.
const watchEvery = 200 * time.Millisecond

// watch reads the server's subflows until ctx ends, and then adds them to the sides.
func (c *competition) watch(ctx context.Context, begun chan<- struct{}) error {
	e := c.Spec.Experiment
	begin := sync.OnceFunc(func() { close(begun) })
	defer begin()
	n, err := c.lab.Node(e.Server)
	if err != nil {
		return err
	}
	var diag *mptcp.Diag
	if err := n.Do(func() error { diag, err = mptcp.DialDiag(); return err }); err != nil {
		return err
	}
	defer diag.Close()
	of := map[netip.Addr]int{}
	for i, s := range c.sides {
		for _, l := range c.Spec.Links {
			for _, end := range l.Ends {
				if end.Node == s.Client {
					for _, a := range end.Addresses {
						of[a.Addr()] = i
					}
				}
			}
		}
	}
	names := congestion.MapNames{}
	all, old := map[pair]*watched{}, map[pair]bool{}
	port := c.Spec.Nodes[e.Server].Serve.Port
	read := func(first bool) error {
		at := time.Duration(-1)
		if start := c.clock.began(); !start.IsZero() {
			at = time.Since(start)
		}
		var failed error
		err := diag.Storages(mptcp.IPv6, func(s *mptcp.Socket, storages []mptcp.Storage) {
			key := pair{s.Local, s.Remote}
			side, ours := of[s.Remote.Addr().Unmap()]
			if s.State == mptcp.Listening || s.Local.Port() != port || !ours {
				return
			}
			if first {
				old[key] = true
			}
			if old[key] {
				return
			}
			w := all[key]
			if w == nil {
				w = &watched{side: side, first: s.Remote.Addr() == c.Spec.AddressOf(c.sides[side].Client), losses: -1}
				all[key] = w
			}
			// Those of the control of the listening socket and of that of the request.
			losses, repairs := int64(-1), uint64(0)
			for _, v := range storages {
				if !names.Has(v.Map) {
					continue
				}
				st, err := congestion.DecodeStats(v.Value)
				failed = errors.Join(failed, err)
				losses, repairs = max(losses, 0)+int64(st.Losses)+int64(st.Timeouts), repairs+uint64(st.Repairs)
			}
			w.losses, w.repairs = losses, repairs
			if at < c.from || at > c.to {
				return
			}
			if !w.began {
				w.began, w.before = true, s.Acked
			}
			w.after = s.Acked
			w.roundTrips += s.RTT
			w.seen++
		})
		return errors.Join(err, failed)
	}
	if err := read(true); err != nil {
		return err
	}
	begin()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := read(false); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	for _, w := range all {
		if w.seen == 0 {
			continue
		}
		s := &c.sides[w.side]
		s.Repairs += w.repairs
		s.Paths = append(s.Paths, result.SidePath{First: w.first, Bytes: float64(w.after - w.before), Losses: w.losses, RoundTrip: w.roundTrips / w.seen})
	}
	return nil
}

// put adds the metrics of the competition to a run.
func (c *competition) put(run *result.Run) {
	start := c.clock.began()
	for i := range c.sides {
		for _, a := range c.arrived[i] {
			if at := a.at.Sub(start); at > c.from && at <= c.to {
				c.sides[i].Bytes += float64(a.bytes)
			}
		}
	}
	result.PutCompetition(run, c.to-c.from, c.sides)
}
