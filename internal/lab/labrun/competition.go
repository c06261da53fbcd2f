package labrun

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/ccbpf"
)

// competition is the connections beside that of a cell: it runs them and measures all.
type competition struct {
	*runner
	lab   *lab.Lab
	job   job
	clock *runClock
	// from and to are the time in which all compete, since the start of the run.
	from, to time.Duration

	sides result.Sides
	// of has the side of each connection of the cell.
	of []int
	// arrived is what arrived on all connections, of each side.
	arrived *arrivals
}

func (r *runner) compete(l *lab.Lab, j job, clock *runClock) *competition {
	c := &competition{runner: r, lab: l, job: j, clock: clock}
	c.from, c.to = r.Spec.Experiment.Competition(j.CellKey, r.Quick)
	c.sides, c.of = j.cell.Sides()
	c.arrived = newArrivals(len(c.sides))
	return c
}

// run runs the other connections until ctx ends, with the run.
func (c *competition) run(ctx context.Context) error {
	others := newTasks(ctx)
	for i, x := range c.job.cell.Beside() {
		side := c.of[1+i]
		args := clientArguments(x.Transport)
		if !x.Own {
			name, _ := c.offers.control(x.Settings)
			args = append(args, "--congestion", name)
		}
		if x.Stop > 0 {
			args = append(args, "--limit", (x.Stop - x.Start).String())
		}
		args = append(args, serverURL(c.Spec, x.Transport)+"/bytes/"+fmt.Sprint(int64(c.job.cell.Traffic.Bytes)))
		for range x.Count {
			others.start(func(ctx context.Context) error {
				if x.Start > 0 {
					if _, err := c.clock.until(ctx, x.Start); err != nil {
						return nil
					}
				}
				report, err := fetch(ctx, c.lab, x.Client, args, func(s traffic.Sample) { c.arrived.add(side, s.Bytes) })
				switch {
				case ctx.Err() != nil:
					return nil
				case err != nil:
					return fmt.Errorf("competing connection of %q: %w", x.Client, err)
				case report.UsedMPTCP != x.Transport.MPTCP:
					return errors.New("a competing connection fell back from MPTCP to TCP, or the other way")
				}
				return nil
			})
		}
	}
	return others.wait()
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

// watch reads the server's subflows until ctx ends, and then adds them to the sides. It calls begun
// after the first reading.
func (c *competition) watch(ctx context.Context, begun func()) error {
	diag, err := dialDiag(c.lab, c.Spec.Experiment.Server)
	if err != nil {
		return err
	}
	defer diag.Close()
	s := survey{competition: c, diag: diag, sideOf: c.addresses(), maps: ccbpf.MapNames{}, all: map[pair]*watched{}, earlier: map[pair]bool{}}
	if err := s.read(true); err != nil {
		return err
	}
	begun()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.read(false); err != nil {
				return err
			}
		case <-ctx.Done():
			s.finish()
			return nil
		}
	}
}

// addresses returns the side of each address of a client.
func (c *competition) addresses() map[netip.Addr]int {
	of := map[netip.Addr]int{}
	for i, s := range c.sides {
		for _, l := range c.Spec.Links {
			for _, end := range l.Ends {
				if end.Node != s.Client {
					continue
				}
				for _, a := range end.Addresses {
					of[a.Addr()] = i
				}
			}
		}
	}
	return of
}

// survey reads the server's subflows in a competition.
type survey struct {
	*competition
	diag    *mptcp.Diag
	sideOf  map[netip.Addr]int
	maps    ccbpf.MapNames
	all     map[pair]*watched
	earlier map[pair]bool // subflows of earlier runs
}

// read adds a reading. The subflows of the first one are of earlier runs.
func (s *survey) read(first bool) error {
	at := time.Duration(-1)
	if start := s.clock.began(); !start.IsZero() {
		at = time.Since(start)
	}
	port := s.Spec.Nodes[s.Spec.Experiment.Server].Serve.Port
	var failed error
	err := s.diag.Storages(mptcp.IPv6, func(socket *mptcp.Socket, storages []mptcp.Storage) {
		key := pair{socket.Local, socket.Remote}
		side, ours := s.sideOf[socket.Remote.Addr().Unmap()]
		if socket.State == mptcp.Listening || socket.Local.Port() != port || !ours {
			return
		}
		if first {
			s.earlier[key] = true
		}
		if s.earlier[key] {
			return
		}
		w := s.all[key]
		if w == nil {
			w = &watched{side: side, first: socket.Remote.Addr() == s.Spec.AddressOf(s.sides[side].Client)}
			s.all[key] = w
		}
		failed = errors.Join(failed, w.count(storages, s.maps))
		if at >= s.from && at <= s.to {
			w.add(socket)
		}
	})
	return errors.Join(err, failed)
}

// count reads the losses from the statistics of a subflow's controls, -1 without any: they are of
// that of the listening socket and of that of the request.
func (w *watched) count(storages []mptcp.Storage, maps ccbpf.MapNames) error {
	w.losses, w.repairs = -1, 0
	for _, v := range storages {
		if !maps.Has(v.Map) {
			continue
		}
		st, err := ccbpf.DecodeStats(v.Value)
		if err != nil {
			return err
		}
		w.losses = max(w.losses, 0) + int64(st.Losses) + int64(st.Timeouts)
		w.repairs += uint64(st.Repairs)
	}
	return nil
}

// add adds a reading in the time in which all compete.
func (w *watched) add(s *mptcp.Socket) {
	if !w.began {
		w.began, w.before = true, s.Acked
	}
	w.after = s.Acked
	w.roundTrips += s.RTT
	w.seen++
}

// finish adds the subflows to the sides.
func (s *survey) finish() {
	for _, w := range s.all {
		if w.seen == 0 {
			continue
		}
		side := &s.sides[w.side]
		side.Repairs += w.repairs
		side.Paths = append(side.Paths, result.SidePath{First: w.first, Bytes: float64(w.after - w.before), Losses: w.losses, RoundTrip: w.roundTrips / w.seen})
	}
}

// put adds the metrics of the competition to a run.
func (c *competition) put(run *result.Run) {
	start := c.clock.began()
	for i := range c.sides {
		c.sides[i].Bytes += c.arrived.during(i, start.Add(c.from), start.Add(c.to))
	}
	result.PutCompetition(run, c.to-c.from, c.sides)
}
