package sim

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
)

func TestCheck(t *testing.T) {
	zero := unit.Bandwidth(0)
	none := time.Duration(0)
	for _, tt := range []struct {
		name  string
		spoil func(*Config)
		want  string
	}{
		{"as it is", func(*Config) {}, ""},
		{"nothing", func(c *Config) { *c = Config{Duration: time.Second} }, "connections: must have one at least, or there is nothing to simulate"},
		{"no time", func(c *Config) { c.Duration = 0 }, "duration: must be > 0s and at most 24h0m0s, got 0s"},
		{"two days", func(c *Config) { c.Duration = 48 * time.Hour }, "duration: must be > 0s and at most"},
		{"negative rate", func(c *Config) { c.Links[2].Rate = -1 }, "links[2].rate: must be at least 8kbit/s"},
		{"negative delay", func(c *Config) { c.Links[0].Delay = -ms }, "links[0].delay: must be from 0s to 1m0s, got -1ms"},
		{"loss", func(c *Config) { c.Links[0].Loss = linkmodel.Loss{Kind: linkmodel.Random, P: 1.5} }, "links[0].loss.p: must be a probability"},
		{"no path", func(c *Config) { c.Connections[0].Paths = nil }, "connections[0].paths: must have at least one"},
		{"two paths without MPTCP", func(c *Config) { c.Connections[0].MPTCP = false }, "connections[0].paths: must be one without MPTCP, got 2"},
		{"65 paths", func(c *Config) {
			for len(c.Connections[0].Paths) < 65 {
				c.Connections[0].Paths = append(c.Connections[0].Paths, c.Connections[0].Paths[0])
			}
		}, "connections[0].paths: must be at most 64, got 65"},
		{"path without links", func(c *Config) { c.Connections[0].Paths[1].Back = nil }, "connections[0].paths[1].back: must have at least one link"},
		{"unknown link", func(c *Config) { c.Connections[0].Paths[1].Out = []int{0, 8} }, "connections[0].paths[1].out[1]: must be a link, from 0 to 7, got 8"},
		{"way of 65 links", func(c *Config) { c.Connections[0].Paths[1].Out = make([]int, 65) }, "connections[0].paths[1].out: must be at most 64, got 65"},
		{"no time there and back", func(c *Config) {
			for i := range 4 {
				c.Links[i].Profile = linkmodel.Profile{}
			}
		}, "connections[0].paths[0]: must have a link with a rate or a delay at all times"},
		{"no time after a change", func(c *Config) {
			for i := range 4 {
				c.Changes = append(c.Changes, Change{Link: i, Change: linkmodel.Change{Rate: &zero, Delay: &none}})
			}
		}, "connections[0].paths[0]: must have a link with a rate or a delay at all times"},
		{"scheduler", func(c *Config) { c.Connections[0].Scheduler = "best" }, "connections[0].scheduler: must be one of default, ratio, "},
		{"congestion", func(c *Config) { c.Connections[0].Congestion = "bbr" }, `connections[0].congestion: must be one of newreno, `},
		{"options", func(c *Config) { c.Connections[0].SchedOptions = sched.Options{Beta: 2} }, "connections[0].sched_options.beta: must be from 0 to 1"},
		{"segment", func(c *Config) { c.Connections[0].Segment = 65_536 }, "connections[0].segment: must be from 1 to 65535 bytes, got 65536"},
		{"header that leaves no segment", func(c *Config) { c.Connections[0].Segment, c.Connections[0].Header = 0, 1515 }, "connections[0].segment: must be from 1"},
		{"negative header", func(c *Config) { c.Connections[0].Header = -1 }, "connections[0].header: must be from 1"},
		{"window below a segment", func(c *Config) { c.Connections[0].Window = 1339 }, "connections[0].window: must be at least a segment, 1340 bytes, or 0 for no limit, got 1339B"},
		{"window of a path", func(c *Config) { c.Connections[0].Paths[0].Window = -1 }, "connections[0].paths[0].window: must be at least a segment"},
		{"initial receive", func(c *Config) { c.Connections[0].InitialReceive = 1 }, "connections[0].initial_receive: must be from 0B to the receive buffer, 0B, got 1B"},
		{"receive buffer", func(c *Config) { c.Connections[0].ReceiveBuffer = 2 * unit.GiB }, "connections[0].receive_buffer: must be at most 1GiB, got 2GiB"},
		{"send buffer", func(c *Config) { c.Connections[0].SendBuffer = 1 }, "connections[0].send_buffer: must be at least a segment"},
		{"uncounted by one path", func(c *Config) { c.Connections[0].Uncounted, c.Connections[0].Scheduler = true, sched.Default }, "connections[0].uncounted: needs mptcp and a scheduler that does not send ahead of windows itself, got \"default\""},
		{"rbuf", func(c *Config) { c.Connections[0].RBuf = -1 }, "connections[0].rbuf: must not be negative"},
		{"minimum threshold", func(c *Config) { c.Connections[0].MinThreshold = -1 }, "connections[0].min_threshold: must be from 1 to 100 segments, or 0 for that of the congestion control, got -1"},
		{"initial window", func(c *Config) { c.Connections[0].InitialWindow = -1 }, "connections[0].initial_window: must be from 1 to 100000 segments, got -1"},
		{"two loss recoveries", func(c *Config) { c.Connections[0].RACK, c.Connections[0].Linux24 = true, true }, "connections[0].linux24: must be false with rack"},
		{"quick acknowledgements", func(c *Config) { c.Connections[0].QuickACKs = -1 }, "connections[0].quick_acks: must be from 0"},
		{"least timeout", func(c *Config) { c.Connections[0].MinRTO = 1 }, "connections[0].min_rto: must be from 1ms to 1m0s, got 1ns"},
		{"stale", func(c *Config) { c.Connections[0].StaleAfter = -1 }, "connections[0].stale_after: must not be negative"},
		{"bytes", func(c *Config) { c.Connections[0].Bytes = -1 }, "connections[0].bytes: must not be negative"},
		{"rate", func(c *Config) { c.Connections[0].Rate = -1 }, "connections[0].rate: must not be negative"},
		{"start", func(c *Config) { c.Connections[0].Start = -1 }, "connections[0].start: must not be negative"},
		{"late start", func(c *Config) { c.Connections[0].Start = MaxDuration + 1 }, "connections[0].start: must be at most 24h0m0s"},
		{"stop", func(c *Config) { c.Connections[0].Start, c.Connections[0].Stop = 5, 5 }, "connections[0].stop: must be after the start, 5ns"},
		{"start of a path", func(c *Config) { c.Connections[0].Paths[1].Start = -1 }, "connections[0].paths[1].start: must not be negative"},
		{"ratio", func(c *Config) { c.Connections[0].Paths[1].Ratio = -1 }, "connections[0].paths[1].ratio: must not be negative"},
		{"series", func(c *Config) { c.Series = -1 }, "series: must not be negative"},
		{"too many samples", func(c *Config) { c.Series = 1 }, "series: must be so long that there are at most 50000000 samples"},
		{"change of no link", func(c *Config) { c.Changes = []Change{{Link: -1}} }, "changes[0].link: must be from 0 to 7, got -1"},
		{"changes out of order", func(c *Config) { c.Changes = []Change{{At: 2}, {At: 1}} }, "changes[1].at: must not be before the change above it"},
		{"change before", func(c *Config) { c.Changes = []Change{{At: -2}} }, "changes[0].at: must not be negative"},
		{"down and up", func(c *Config) { c.Changes = []Change{{Down: true, Up: true}} }, "changes[0]: must not be down and up at once"},
		{"change to the impossible", func(c *Config) { v := -ms; c.Changes = []Change{{Link: 3, Change: linkmodel.Change{Delay: &v}}} }, "changes[0].delay: must be from 0s"},
		{"cross traffic of a strange kind", func(c *Config) { c.Cross[0].Kind = "web" }, `cross[0].kind: must be cbr, poisson or on-off, got "web"`},
		{"cross traffic without a rate", func(c *Config) { c.Cross[0].Rate = 0 }, "cross[0].rate: must be > 0bit/s, got 0bit/s"},
		{"cross traffic without a size", func(c *Config) { c.Cross[0].Size = 0 }, "cross[0].size: must be from 1 to 65535 bytes, got 0"},
		{"cross traffic over nothing", func(c *Config) { c.Cross[0].Out = nil }, "cross[0].out: must have at least one link"},
		{"cross traffic that is on", func(c *Config) { c.Cross[0].On = 1 }, `cross[0].kind: must be on-off with on, off or pareto, got "cbr"`},
		{"cross traffic that is never off", func(c *Config) { c.Cross[0].Kind, c.Cross[0].On = OnOff, 1 }, "cross[0].on: must be > 0s, and so must off"},
		{"no mean", func(c *Config) { x := &c.Cross[0]; x.Kind, x.On, x.Off, x.Pareto = OnOff, 1, 1, math.NaN() }, "cross[0].pareto: must be a shape > 1"},
		{"stop of cross traffic", func(c *Config) { c.Cross[0].Stop = -1 }, "cross[0].stop: must be after the start"},
		{"many", func(c *Config) { c.Connections = make([]Connection, maxSources) }, "must have at most 131072 of links, connections, "},
	} {
		c := paper(first, second)
		c.Cross = []Cross{{Kind: CBR, Rate: unit.MbitPerSecond, Size: 1000, Out: []int{0}}}
		tt.spoil(&c)
		got := c.Check().Error()
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if _, err := New(c); (err == nil) != (tt.want == "") {
			t.Errorf("%s: New says %v", tt.name, err)
		}
	}
}

// Defaults of a connection without explicit values.
func TestDefaults(t *testing.T) {
	tcp, mptcp := Connection{}.withDefaults(), Connection{MPTCP: true}.withDefaults()
	if tcp.Segment != 1428 || tcp.Header != 86 || tcp.Congestion != "cubic" || tcp.InitialWindow != 10 || tcp.MinRTO != 200*ms {
		t.Errorf("TCP: %+v", tcp)
	}
	if mptcp.Segment != 1400 || mptcp.Header != 114 || mptcp.Congestion != "lia" || mptcp.StaleAfter != 4 {
		t.Errorf("MPTCP: %+v", mptcp)
	}
}
