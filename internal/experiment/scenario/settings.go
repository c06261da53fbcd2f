package scenario

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Settings are the settings of both ends of a connection. Unset ones are as in mainline Linux.
type Settings struct {
	// Scheduler is the packet scheduler of MPTCP, by name (see docs/simulator.md).
	Scheduler string `yaml:"scheduler,omitempty"`
	// Congestion is the congestion control, by name (see docs/simulator.md). A transport with bbr
	// runs in labs only.
	Congestion string `yaml:"congestion,omitempty"`
	// Pace chooses the congestion controls of tabane cc for a lab, also where the kernel has one of
	// that name: true paces the packets of each subflow, false sends bursts, which the simulator
	// does not have. Default: true for controls that the kernel lacks, false for cubic.
	Pace *bool `yaml:"pace,omitempty"`
	// Lowat bounds the unsent data of MPTCP subflows and paces those below 400 Mbit/s, with the
	// congestion controls of tabane cc (docs/congestion-control.md). Default: false.
	Lowat *bool `yaml:"lowat,omitempty"`
	// Use is which subflows of an MPTCP connection carry data, as mptcp.use of the server's edge.
	// Default: the value of that key. Example: overflow
	Use edge.Use `yaml:"use,omitempty"`
	// Recall makes each run follow a download of this length over TCP or MPTCP, whose measurements
	// of the paths its connections use. It needs use: overflow, or a delivery. Each run starts
	// without the measurements of others. Example: 6s
	Recall time.Duration `yaml:"recall,omitempty"`
	// Begin is where MPTCP connections begin: best is the path that recall measured as the best for
	// short transfers; a link is one of the transport's that rests once another one has joined. Default:
	// the first of its links. Only the simulator has it. Example: best
	Begin string `yaml:"begin,omitempty"`
	// SchedulerOptions are the parameters of the scheduler.
	SchedulerOptions SchedulerOptions `yaml:"scheduler_options,omitempty"`
	// Window is the most payload that a subflow may have in flight.
	Window unit.Size `yaml:"window,omitempty"`
	// RBuf is paper B's bound at the sender of several subflows: no new data is sent while more
	// than this is sent and not acknowledged at the data level.
	RBuf unit.Size `yaml:"rbuf,omitempty"`
	// ReceiveBuffer is the receive buffer, which the receiver advertises and all subflows
	// share.
	// Example: 260kB
	ReceiveBuffer unit.Size `yaml:"receive_buffer,omitempty"`
	// Segment is the payload of a full segment in bytes. Default: what the MTU leaves.
	Segment int `yaml:"segment,omitempty"`
	// InitialWindow is the initial congestion window in segments. Default: 10 (RFC 6928).
	InitialWindow int `yaml:"initial_window,omitempty"`
	// DelayedACK makes the receiver acknowledge every other segment (RFC 9293 section 3.8.6.3).
	// Default: true.
	DelayedACK *bool `yaml:"delayed_ack,omitempty"`
	// RACK detects losses by time (RFC 8985) instead of duplicate acknowledgments alone (RFC
	// 6675). In the kernel since Linux 6.17, false has no effect. Default: true.
	RACK *bool `yaml:"rack,omitempty"`
	// Era is 2006 for TCP as Linux 2.4 and 2.6 had it until that year, at both ends: a segment is
	// lost when so many above it have arrived, 3 at first and up to 127 where segments were
	// reordered; reductions of the congestion window that prove spurious are undone. Give a
	// receive_buffer of 64KiB, the default then. The kernel (tcp_recovery, tcp_early_retrans,
	// tcp_frto = 0, tcp_max_reordering = 127) has that until 6.16; since then it detects losses by
	// time.
	// Default: as today. Example: 2006
	Era int `yaml:"era,omitempty"`
}

const (
	// minSegment is the smallest useful payload of a segment (Linux' TCP_MIN_MSS), maxSegment
	// the largest without IPv6 jumbograms.
	minSegment, maxSegment = 88, 65535 - 60
	// maxHeader bounds the headers of a segment, in bytes.
	maxHeader = 1000
	// maxMinThreshold bounds Model.MinThreshold.
	maxMinThreshold = 100
	// maxInitialWindow bounds the initial window, in segments.
	maxInitialWindow = 1000
	// maxRecall bounds the download before a run: what is learned counts for 10 minutes.
	maxRecall = time.Minute
)

// BeginBest is a value of Settings.Begin.
const BeginBest = "best"

// With returns the settings after those set in over have replaced them.
func (s Settings) With(over Settings) Settings {
	s.Scheduler = cmp.Or(over.Scheduler, s.Scheduler)
	s.SchedulerOptions = s.SchedulerOptions.With(over.SchedulerOptions)
	s.Congestion = cmp.Or(over.Congestion, s.Congestion)
	s.Pace = cmp.Or(over.Pace, s.Pace)
	s.Lowat = cmp.Or(over.Lowat, s.Lowat)
	s.Use = cmp.Or(over.Use, s.Use)
	s.Recall = cmp.Or(over.Recall, s.Recall)
	s.Begin = cmp.Or(over.Begin, s.Begin)
	s.Window = cmp.Or(over.Window, s.Window)
	s.RBuf = cmp.Or(over.RBuf, s.RBuf)
	s.ReceiveBuffer = cmp.Or(over.ReceiveBuffer, s.ReceiveBuffer)
	s.Segment = cmp.Or(over.Segment, s.Segment)
	s.InitialWindow = cmp.Or(over.InitialWindow, s.InitialWindow)
	s.DelayedACK = cmp.Or(over.DelayedACK, s.DelayedACK)
	s.RACK = cmp.Or(over.RACK, s.RACK)
	s.Era = cmp.Or(over.Era, s.Era)
	return s
}

// Settings returns the settings of a cell's connections: those of its transport, overridden by
// those of its case.
func (e *Experiment) Settings(k result.CellKey) Settings {
	return e.Transports[k.Transport].Settings.With(e.Case(k.Case).Settings)
}

// Check returns the faults of the settings, whether of TCP or MPTCP.
func (s Settings) Check() fault.List {
	var faults fault.List
	if s.Scheduler != "" && !slices.Contains(sched.Names(), s.Scheduler) {
		faults.Add("scheduler", "must be one of %s, got %q", strings.Join(sched.Names(), ", "), s.Scheduler)
	}
	if !slices.Contains(cc.Names(), s.Congestion) {
		const need = "needs a congestion control of tabane cc, got %q"
		if s.Pace != nil {
			faults.Add("pace", need, s.Congestion)
		}
		if s.Lowat != nil {
			faults.Add("lowat", need, s.Congestion)
		}
	}
	if s.Use != "" && s.Use != edge.UseAll && s.Use != edge.UseOverflow {
		faults.Add("use", "must be %q or %q, got %q", edge.UseAll, edge.UseOverflow, s.Use)
	}
	if s.Recall < 0 || s.Recall > maxRecall {
		faults.Add("recall", "must be from 0 to %s, got %s", maxRecall, s.Recall)
	}
	if s.Begin == BeginBest && s.Recall == 0 {
		faults.Add("begin", "needs recall if it is %s", BeginBest)
	}
	faults.Merge("scheduler_options", s.SchedulerOptions.Check())
	if names := cc.Known(); s.Congestion != "" && !slices.Contains(names, s.Congestion) {
		faults.Add("congestion", "must be one of %s, got %q", strings.Join(names, ", "), s.Congestion)
	}
	for _, b := range []struct {
		name string
		size unit.Size
	}{{"window", s.Window}, {"rbuf", s.RBuf}, {"receive_buffer", s.ReceiveBuffer}} {
		switch {
		case b.size < 0:
			faults.Add(b.name, "must not be negative, got %s", b.size)
		case b.size != 0 && s.Segment > 0 && b.size < unit.Size(s.Segment):
			faults.Add(b.name, "must hold at least one segment, %d bytes, got %s", s.Segment, b.size)
		}
	}
	if s.Segment != 0 && (s.Segment < minSegment || s.Segment > maxSegment) {
		faults.Add("segment", "must be %d to %d bytes, got %d", minSegment, maxSegment, s.Segment)
	}
	if s.InitialWindow < 0 || s.InitialWindow > maxInitialWindow {
		faults.Add("initial_window", "must be 1 to %d segments, got %d", maxInitialWindow, s.InitialWindow)
	}
	return faults
}

// transportSettings checks the settings of transports and of cases.
func (c *checker) transportSettings(path string, e *Experiment) {
	var mptcp []*Transport
	for _, t := range e.Transports {
		if t != nil && t.MPTCP {
			mptcp = append(mptcp, t)
		}
	}
	for _, name := range e.TransportNames() {
		t, path := e.Transports[name], at(path+".transports", name)
		if t == nil {
			continue
		}
		c.Merge(path, t.Settings.Check())
		c.recall(path, t.Settings, t.Delivery)
		c.use(path, e, t.Settings)
		c.era(path, t.Settings)
		switch m := t.Model; {
		case m == nil:
		case *m == (Model{}):
			c.Add(path+".model", "is empty: give header, at_once, min_rto, min_threshold or uncounted")
		case m.Header < 0 || m.Header > maxHeader:
			c.Add(path+".model.header", "must be 1 to %d bytes, got %d", maxHeader, m.Header)
		case m.MinRTO < 0:
			c.Add(path+".model.min_rto", "must not be negative, got %s", m.MinRTO)
		case m.MinThreshold < 0 || m.MinThreshold > maxMinThreshold:
			c.Add(path+".model.min_threshold", "must be 1 to %d segments, got %d", maxMinThreshold, m.MinThreshold)
		case m.Uncounted && (!t.MPTCP || sched.NeedsOf(cmp.Or(t.Scheduler, sched.Default)).Ahead):
			c.Add(path+".model.uncounted", "needs mptcp and a scheduler that does not send ahead of windows itself, got %q", cmp.Or(t.Scheduler, sched.Default))
		}
		if !t.MPTCP {
			c.singlePath(path, t.Settings, t.Proxies)
		} else if name, why := t.SchedulerOptions.foreign(t.Scheduler, len(t.Links)); name != "" {
			c.Add(path+".scheduler_options."+name, "%s", why)
		}
	}
	for i, k := range e.Cases {
		path := index(path+".cases", i) + ".settings"
		c.Merge(path, k.Settings.Check())
		c.recall(path, k.Settings, edge.Mode{})
		c.use(path, e, k.Settings)
		if k.Settings.Era != 0 {
			c.Add(path+".era", "is for transports: it changes the headers, and so the limit")
		}
		if len(mptcp) == 0 {
			c.singlePath(path, k.Settings, false)
			continue
		}
		// What a case sets must have an effect on one of the transports at least.
		name, why := "", ""
		for _, t := range mptcp {
			over := t.Settings.With(k.Settings)
			if name, why = k.Settings.SchedulerOptions.foreign(over.Scheduler, len(t.Links)); name == "" {
				break
			}
		}
		if name != "" {
			c.Add(path+".scheduler_options."+name, "%s", why)
		}
	}
}

// use adds a fault if settings choose the subflows that carry data, and nothing on the server does.
func (c *checker) use(path string, e *Experiment, s Settings) {
	if s.Use == "" {
		return
	}
	if n := c.spec.Nodes[e.Server]; n == nil || n.Edge == nil || !n.Edge.MPTCP.CanChoose() {
		c.Add(path+".use", "needs an edge with its own path manager on node %q", e.Server)
	}
}

// recall checks that connections with those settings use what another one measured.
func (c *checker) recall(path string, s Settings, delivery edge.Mode) {
	if s.Recall > 0 && s.Use != edge.UseOverflow && delivery.IsZero() {
		c.Add(path+".recall", "needs use: %s, or a delivery", edge.UseOverflow)
	}
}

// singlePath adds a fault for each setting that has no effect on a connection over one path, or
// that proxies do not have.
func (c *checker) singlePath(path string, s Settings, proxies bool) {
	if s.Scheduler != "" {
		c.Add(path+".scheduler", "is for transports with mptcp: there is only one path")
	}
	for _, name := range s.SchedulerOptions.Set() {
		c.Add(path+".scheduler_options."+name, "is for transports with mptcp: there is only one path")
	}
	if s.Lowat != nil && !proxies {
		c.Add(path+".lowat", "is for transports with mptcp or proxies: there is no scheduler")
	}
	if s.Use != "" {
		c.Add(path+".use", "is for transports with mptcp: there is only one path")
	}
	if s.RBuf != 0 {
		c.Add(path+".rbuf", "is for transports with mptcp: use window on one path")
	}
}

// sortedKeys are the keys of a map, sorted.
func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
