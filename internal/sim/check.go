package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/arrival"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Limits of a simulation, which bound its memory.
const (
	// MaxDuration is the longest simulated time.
	MaxDuration = 24 * time.Hour

	maxChanges = 1_000_000
	maxHops    = 64
	maxSegment = 65_535
	// maxMinThreshold bounds Connection.MinThreshold, in segments.
	maxMinThreshold = 100
	maxSamples      = 50_000_000 // of all series together
	maxInitial      = 100_000    // segments
	maxBuffer       = unit.GiB   // the largest window (RFC 7323, section 2.3)
	maxQuick        = 1_000_000
)

// Check returns all faults of the config.
func (c Config) Check() fault.List {
	var faults fault.List
	if c.Duration <= 0 || c.Duration > MaxDuration {
		faults.Add("duration", "must be > 0s and at most %s, got %s", MaxDuration, c.Duration)
	}
	bound(&faults, "changes", len(c.Changes), maxChanges)
	if events := c.sources(); events > maxSources {
		faults.Add("", "must have at most %d of links, connections, both ends of their paths, and cross traffic together, got %d", maxSources, events)
	}
	if len(faults) > 0 {
		return faults
	}
	if len(c.Connections)+len(c.Cross) == 0 {
		faults.Add("connections", "must have one at least, or there is nothing to simulate")
	}
	for i := range c.Links {
		faults.Merge(fmt.Sprintf("links[%d]", i), c.Links[i].Check())
	}
	faults.Merge("changes", c.checkChanges())
	instant := c.instant()
	for i := range c.Connections {
		faults.Merge(fmt.Sprintf("connections[%d]", i), c.Connections[i].check(len(c.Links), instant))
	}
	for i := range c.Cross {
		faults.Merge(fmt.Sprintf("cross[%d]", i), c.Cross[i].check(len(c.Links)))
	}
	faults.Merge("series", c.checkSeries())
	return faults
}

// sources returns the number of event sources, including those of changes and series.
func (c Config) sources() int {
	n := len(c.Links) + len(c.Connections) + len(c.Cross) + 2
	for i := range c.Connections {
		n += 2 * c.Connections[i].subflows()
		if c.Connections[i].Gateway != nil {
			n += 2
		}
	}
	for i := range c.Cross {
		if c.Cross[i].Gateway != nil {
			n++
		}
	}
	return n
}

func bound(faults *fault.List, path string, n, most int) {
	if n > most {
		faults.Add(path, "must be at most %d, got %d", most, n)
	}
}

func notNegative[T int | time.Duration | unit.Size | unit.Bandwidth](faults *fault.List, path string, v T) {
	if v < 0 {
		faults.Add(path, "must not be negative, got %v", v)
	}
}

func (c Config) checkSeries() fault.List {
	var faults fault.List
	if c.Series < 0 {
		faults.Add("", "must not be negative, got %s", c.Series)
	}
	if c.Series <= 0 || c.Duration <= 0 {
		return faults
	}
	series := 0
	for i := range c.Connections {
		series += 1 + len(c.Connections[i].Paths)
	}
	if n := int64(c.Duration / c.Series); n > maxSamples || n*int64(series) > maxSamples {
		faults.Add("", "must be so long that there are at most %d samples, got %d series of %d", maxSamples, series, n)
	}
	return faults
}

func (c Config) checkChanges() fault.List {
	var faults fault.List
	profiles := make(map[int]Link)
	for i, change := range c.Changes {
		at := fmt.Sprintf("[%d]", i)
		switch {
		case change.At < 0:
			faults.Add(fault.Join(at, "at"), "must not be negative, got %s", change.At)
		case i > 0 && change.At < c.Changes[i-1].At:
			faults.Add(fault.Join(at, "at"), "must not be before the change above it, at %s, got %s", c.Changes[i-1].At, change.At)
		}
		if change.Down && change.Up {
			faults.Add(at, "must not be down and up at once")
		}
		if change.Link < 0 || change.Link >= len(c.Links) {
			faults.Add(fault.Join(at, "link"), "must be from 0 to %d, got %d", len(c.Links)-1, change.Link)
			continue
		}
		l, ok := profiles[change.Link]
		if !ok {
			l = c.Links[change.Link]
		}
		l.Profile = l.With(change.Change)
		profiles[change.Link] = l
		faults.Merge(at, l.Check())
	}
	return faults
}

// instant reports for each link whether at any time packets pass it with zero delay.
func (c Config) instant() []bool {
	least := func(l Link) bool { return l.Rate == 0 && l.Least() <= 0 }
	now, ever := slices.Clone(c.Links), make([]bool, len(c.Links))
	for i, l := range c.Links {
		ever[i] = least(l)
	}
	for _, change := range c.Changes {
		if i := change.Link; i >= 0 && i < len(now) {
			now[i].Profile = now[i].With(change.Change)
			ever[i] = ever[i] || least(now[i])
		}
	}
	return ever
}

func way(faults *fault.List, path string, way []int, links int) {
	if len(way) == 0 {
		faults.Add(path, "must have at least one link")
	}
	bound(faults, path, len(way), maxHops)
	for i, l := range way {
		if l < 0 || l >= links {
			faults.Add(fmt.Sprintf("%s[%d]", path, i), "must be a link, from 0 to %d, got %d", links-1, l)
		}
	}
}

func times(faults *fault.List, start, stop time.Duration) {
	begins(faults, start)
	if stop != 0 && stop <= start {
		faults.Add("stop", "must be after the start, %s, or 0 for never, got %s", start, stop)
	}
}

func begins(faults *fault.List, start time.Duration) {
	notNegative(faults, "start", start)
	if start > MaxDuration {
		faults.Add("start", "must be at most %s, got %s", MaxDuration, start)
	}
}

func (c *Connection) check(links int, instant []bool) fault.List {
	var faults fault.List
	times(&faults, c.Start, c.Stop)
	notNegative(&faults, "bytes", c.Bytes)
	notNegative(&faults, "rate", c.Rate)
	notNegative(&faults, "object", c.Object)
	if c.Object > 0 && (c.Rate > 0 || c.Bytes == 0) {
		faults.Add("object", "needs bytes, and no rate")
	}
	f := c.withDefaults()
	c.checkPaths(&faults, f.Segment, links, instant)
	c.checkUse(&faults)
	f.checkControls(&faults)
	f.checkSegments(&faults)
	f.checkWindows(&faults)
	return faults
}

// checkPaths adds the faults of the paths, and of what uses them. segment has its default.
func (c *Connection) checkPaths(faults *fault.List, segment, links int, instant []bool) {
	switch {
	case len(c.Paths) == 0:
		faults.Add("paths", "must have at least one")
	case c.Gateway != nil && c.MPTCP:
		faults.Add("gateway", "must not be given with MPTCP: it splits one connection")
	case c.Gateway != nil:
		faults.Merge("gateway", c.Gateway.check(len(c.Paths)))
	case c.Spray != nil && (c.MPTCP || len(c.Paths) > arrival.MaxPaths):
		faults.Add("spray", "must be given with TCP over at most %d paths", arrival.MaxPaths)
	case c.Spray != nil:
	case !c.MPTCP && len(c.Paths) > 1:
		faults.Add("paths", "must be one without MPTCP, got %d", len(c.Paths))
	case len(c.Paths) > sched.MaxPaths:
		faults.Add("paths", "must be at most %d, got %d", sched.MaxPaths, len(c.Paths))
	}
	for i := range c.Paths {
		faults.Merge(fmt.Sprintf("paths[%d]", i), c.Paths[i].check(segment, links, instant))
	}
}

// checkUse adds the faults of how the paths are used.
func (c *Connection) checkUse(faults *fault.List) {
	if c.Unread && c.Spray == nil {
		faults.Add("unread", "needs spray")
	}
	if c.Past != nil && (len(c.Past) != len(c.Paths) || !c.Overflow) {
		faults.Add("past", "must have one for each path, and needs overflow")
	}
	if c.Begin != 0 && (c.Begin < 0 || c.Begin >= len(c.Paths) || !c.MPTCP) {
		faults.Add("begin", "must be the number of a path of MPTCP, got %d", c.Begin)
	}
}

// checkControls adds the faults of congestion control and scheduler. c has its defaults.
func (c *Connection) checkControls(faults *fault.List) {
	if !slices.Contains(cc.Names(), c.Congestion) {
		faults.Add("congestion", "must be one of %s, got %q", strings.Join(cc.Names(), ", "), c.Congestion)
	}
	switch known := slices.Contains(sched.Names(), c.Scheduler); {
	case c.MPTCP && !known:
		faults.Add("scheduler", "must be one of %s, got %q", strings.Join(sched.Names(), ", "), c.Scheduler)
	case !c.MPTCP && c.Scheduler != "":
		faults.Add("scheduler", "must be empty without MPTCP, got %q", c.Scheduler)
	}
	faults.Merge("sched_options", c.SchedOptions.Check())
}

// checkSegments adds the faults of segments, acknowledgements and timers. c has its defaults.
func (c *Connection) checkSegments(faults *fault.List) {
	if c.Segment < 1 || c.Segment > maxSegment {
		faults.Add("segment", "must be from 1 to %d bytes, got %d", maxSegment, c.Segment)
	}
	if c.Header < 1 || c.Header > maxSegment {
		faults.Add("header", "must be from 1 to %d bytes, got %d", maxSegment, c.Header)
	}
	if c.Linux24 && c.RACK {
		faults.Add("linux24", "must be false with rack: Linux has one or the other")
	}
	if c.QuickACKs < 0 || c.QuickACKs > maxQuick {
		faults.Add("quick_acks", "must be from 0 to %d, got %d", maxQuick, c.QuickACKs)
	}
	if c.MinRTO < time.Millisecond || c.MinRTO > time.Minute {
		faults.Add("min_rto", "must be from 1ms to 1m0s, got %s", c.MinRTO)
	}
	notNegative(faults, "stale_after", c.StaleAfter)
}

// checkWindows adds the faults of windows and buffers. c has its defaults.
func (c *Connection) checkWindows(faults *fault.List) {
	window(faults, "window", c.Window, c.Segment)
	notNegative(faults, "rbuf", c.RBuf)
	if c.Uncounted && (!c.MPTCP || sched.NeedsOf(c.Scheduler).Ahead) {
		faults.Add("uncounted", "needs mptcp and a scheduler that does not send ahead of windows itself, got %q", c.Scheduler)
	}
	if c.MinThreshold < 0 || c.MinThreshold > maxMinThreshold {
		faults.Add("min_threshold", "must be from 1 to %d segments, or 0 for that of the congestion control, got %d", maxMinThreshold, c.MinThreshold)
	}
	window(faults, "receive_buffer", c.ReceiveBuffer, c.Segment)
	if c.InitialReceive < 0 || c.InitialReceive > c.ReceiveBuffer {
		faults.Add("initial_receive", "must be from 0B to the receive buffer, %s, got %s", c.ReceiveBuffer, c.InitialReceive)
	}
	if c.ReceiveBuffer > maxBuffer {
		faults.Add("receive_buffer", "must be at most %s, got %s", maxBuffer, c.ReceiveBuffer)
	}
	window(faults, "send_buffer", c.SendBuffer, c.Segment)
	if c.InitialWindow < 1 || c.InitialWindow > maxInitial {
		faults.Add("initial_window", "must be from 1 to %d segments, got %d", maxInitial, c.InitialWindow)
	}
}

// window reports a fault if a limit is smaller than one segment, which would block all data.
func window(faults *fault.List, path string, w unit.Size, segment int) {
	if w != 0 && w < unit.Size(segment) {
		faults.Add(path, "must be at least a segment, %d bytes, or 0 for no limit, got %s", segment, w)
	}
}

func (p *Path) check(segment, links int, instant []bool) fault.List {
	var faults fault.List
	before := len(faults)
	way(&faults, "out", p.Out, links)
	way(&faults, "back", p.Back, links)
	if len(faults) == before {
		takes := func(l int) bool { return !instant[l] }
		if !slices.ContainsFunc(p.Out, takes) && !slices.ContainsFunc(p.Back, takes) {
			faults.Add("", "must have a link with a rate or a delay at all times: a round trip takes time")
		}
	}
	begins(&faults, p.Start)
	window(&faults, "window", p.Window, segment)
	notNegative(&faults, "ratio", p.Ratio)
	notNegative(&faults, "rate", p.Rate)
	return faults
}

func (c *Cross) check(links int) fault.List {
	var faults fault.List
	if c.Gateway == nil {
		way(&faults, "out", c.Out, links)
		if c.Reverse {
			faults.Add("reverse", "needs a gateway")
		}
	} else {
		faults.Merge("gateway", c.Gateway.check(len(c.Paths)))
		if len(c.Paths) == 0 {
			faults.Add("paths", "must have at least one")
		}
		for i := range c.Paths {
			way(&faults, fmt.Sprintf("paths[%d].out", i), c.Paths[i].Out, links)
			way(&faults, fmt.Sprintf("paths[%d].back", i), c.Paths[i].Back, links)
		}
	}
	times(&faults, c.Start, c.Stop)
	if c.Payload < 0 || c.Payload > c.Size {
		faults.Add("payload", "must be from 0 to the size, %d bytes, got %d", c.Size, c.Payload)
	}
	if c.Rate < 1 {
		faults.Add("rate", "must be > 0bit/s, got %s", c.Rate)
	}
	if c.Size < 1 || c.Size > maxSegment {
		faults.Add("size", "must be from 1 to %d bytes, got %d", maxSegment, c.Size)
	}
	switch c.Kind {
	case CBR, Poisson:
		if c.On != 0 || c.Off != 0 || c.Pareto != 0 {
			faults.Add("kind", "must be %s with on, off or pareto, got %q", OnOff, string(c.Kind))
		}
	case OnOff:
		if c.On <= 0 || c.Off <= 0 {
			faults.Add("on", "must be > 0s, and so must off, got %s and %s", c.On, c.Off)
		}
		if c.Pareto != 0 && !(c.Pareto > 1 && c.Pareto <= 100) {
			faults.Add("pareto", "must be a shape > 1, at which there is a mean, got %v", c.Pareto)
		}
	default:
		faults.Add("kind", "must be %s, %s or %s, got %q", CBR, Poisson, OnOff, string(c.Kind))
	}
	return faults
}
