package sim

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Config describes a simulation. The same Config gives the same Result, bit for bit.
type Config struct {
	// Seed seeds all random streams. Each link and each source has its own, so that adding one at
	// the end of a list does not change the random numbers of the others.
	Seed uint64
	// Duration is the simulated time.
	Duration    time.Duration
	Links       []Link
	Connections []Connection
	Cross       []Cross
	Changes     []Change
	// Series is the interval of the series in the result; 0 for none.
	Series time.Duration
	// Bursts records every burst of every connection with its time.
	Bursts bool
}

// Link is one direction of a link.
type Link struct {
	Name string
	linkmodel.Profile
}

// Path is the path of a subflow. Out are the links from the sender of data to its receiver, Back
// those of the acknowledgements: indices of Config.Links, in order. Any number of paths may share a
// link.
type Path struct {
	Out, Back []int
	// Start is when the path becomes available, after the start of the connection: its address is
	// advertised then.
	Start time.Duration
	// Backup: the path is used only while no other is usable (RFC 8684, section 3.3.8).
	Backup bool
	// Window replaces Connection.Window unless it is 0.
	Window unit.Size
	// Ratio is the number of consecutive segments that the scheduler ratio assigns to the path;
	// 0 means 1.
	Ratio int
	// Rate is the rate that the schedulers dq and dqj assume; 0 means the minimum of the rates
	// of Out.
	Rate unit.Bandwidth
	// With Connection.Overflow: Listed is set if the policy names the path, Rank orders the paths
	// of selection.Cost, Commit bounds what this one carries, 0 for no bound, and Share is that of
	// selection.Ratio.
	Listed bool
	Rank   int
	Commit unit.Bandwidth
	Share  float64
}

// Connection is one TCP connection, or one MPTCP connection with a subflow on each of its paths.
// Data goes one way.
type Connection struct {
	Name string
	// Start is when the connection is opened; at Stop the application stops writing, 0 for never.
	Start, Stop time.Duration
	// Bytes is how much the application writes, 0 for no end. Rate is the rate at which it writes,
	// 0 for no limit.
	Bytes unit.Size
	Rate  unit.Bandwidth
	// Object is the size of the objects that Bytes consists of, 0 for one. The receiver requests an
	// object when it has all of the previous one, over the first path that is not a backup.
	Object unit.Size

	// Beside: the connection does not keep the simulation running, which ends when all others have
	// ended.
	Beside bool

	Paths []Path
	// MPTCP uses data sequence numbers, and one subflow for each path. TCP has one path, or those
	// that its Gateway uses.
	MPTCP bool
	// Scheduler is a name of package sched; MPTCP needs one, TCP has none. Congestion is a name of
	// package cc, cubic or with MPTCP lia if empty.
	Scheduler    string
	SchedOptions sched.Options
	Congestion   string
	// Lowat bounds the data that the scheduler assigns to a subflow ahead of its window (cc.Lowat),
	// and enlarges the send buffers (cc.SendBufferLowat). It has no effect with schedulers that
	// assign nothing ahead.
	Lowat bool

	// Overflow has one path carry data first, and the others while it is saturated: the sender
	// looks at them every selection.Interval, as the path manager of tabane edge does. A stalled
	// subflow carries nothing until it makes progress. Policy is what the paths are chosen for.
	Overflow bool
	Policy   selection.Policy
	// Past is what earlier connections learned of each path, for Overflow; nil: nothing.
	Past []selection.Past
	// Begin is the path on which an MPTCP connection is established, which is preferred to the
	// others.
	Begin int

	// Segment is the payload of a full segment. Header is the number of header bytes that links
	// count for each segment and acknowledgement. 0 means that of an Ethernet frame of 1514
	// bytes (docs/adr/0005-limit.md).
	Segment, Header int
	// Window limits the outstanding data of a subflow, 0 for no limit: ns-2's window_, or a locked
	// RTAX_CWND.
	Window unit.Size
	// RBuf is the rule of paper B, section 3.3: no new data while more than this is outstanding at
	// the data level. 0 for no limit.
	RBuf unit.Size
	// ReceiveBuffer is the receive window that all subflows share. It starts at the data
	// acknowledgement and includes data held out of order. 0 means no limit.
	ReceiveBuffer unit.Size
	// InitialReceive is the part of ReceiveBuffer that is advertised initially; 0 means all.
	// The window grows with what the application reads in a round trip, less the memory of data
	// held out of order (dynamic right-sizing, Linux: mptcp_rcv_space_adjust).
	InitialReceive unit.Size
	// SendBuffer limits the data that is not data-acknowledged. 0 for no limit.
	SendBuffer unit.Size

	// DelayedACK acknowledges every second segment, or after 40 ms as Linux does; segments that are
	// out of order or fill a gap at once (RFC 5681, section 4.2). The first QuickACKs segments of a
	// subflow are each acknowledged (Linux: up to 16).
	DelayedACK bool
	QuickACKs  int
	// RACK selects Linux' loss recovery: RACK-TLP (RFC 8985), the undo of reductions that DSACKs or
	// timestamps prove spurious, a congestion window that is reduced in proportion to what is
	// delivered (RFC 6937), and a retransmission timeout with the largest variation of a round
	// trip, which decays by a quarter in each. The receiver discards data by its timestamps (PAWS,
	// RFC 7323). Without it losses are found by counting (RFC 6675), and the window falls at once.
	RACK bool
	// HyStart has cubic leave slow start early, as Linux does.
	HyStart bool
	// Linux24 selects the loss recovery of Linux 2.4 and 2.6 before 2.6.24, without RACK: see
	// linux24.
	Linux24 bool
	// InitialWindow is the initial window in segments; 0 for cc.InitialWindow.
	InitialWindow int
	// MinRTO is the minimum of the part of the retransmission timeout that exceeds SRTT; 0
	// means quality.MinRTO.
	MinRTO time.Duration
	// MinThreshold replaces the congestion control's minimum of the slow start threshold after a
	// loss, in segments; 0: it does not.
	MinThreshold int
	// Handshake has the receiver open the connection, as a client does that requests content: data
	// is sent 1.5 RTT after Start. Further subflows join when the first is established. Without it
	// subflows are established when they start.
	Handshake bool

	// Opportunistic retransmits the segment that blocks the shared window over a path that has
	// room, and Penalize halves the congestion window of the subflow that blocks it, once per round
	// trip (Raiciu et al., How Hard Can It Be?, NSDI 2012, sections 4.1 and 4.2).
	Opportunistic, Penalize bool
	// Uncounted lets the scheduler assign data for the whole congestion window that is not in
	// flight, each time it is called: data that was assigned before and not yet sent is not
	// subtracted. Nothing is reinjected. The ns-2 code used for the experiments of paper B does
	// the same (Nishida, MptcpAgent::send_control).
	Uncounted bool
	// Gateway has the packets of a TCP connection carried over all paths below TCP; nil: by none.
	Gateway *Gateway
	// Spray has the sender of a TCP connection send each packet over the path that it is expected to
	// arrive first over, the first one being home; nil: it has one path. Acknowledgments take the
	// first one's Back.
	Spray *Spray
	// Unread: acknowledgments cannot be read, as those of QUIC, so that the packets are sprayed as
	// datagrams. Needs Spray.
	Unread bool
	// StaleAfter is the number of consecutive timeouts after which a subflow is stale: it gets no
	// new data until an acknowledgement arrives; 0 for DefaultStaleAfter.
	StaleAfter int
}

// Defaults of a Connection.
const (
	// DefaultStaleAfter is Linux' net.mptcp.stale_loss_cnt.
	DefaultStaleAfter = 4

	frame       = 1514
	headerTCP   = 86  // Ethernet 14, IPv6 40, TCP 20, timestamps 12
	headerMPTCP = 114 // and DSS 28
)

// subflows returns the number of the connection's subflows.
func (c *Connection) subflows() int {
	if c.Gateway != nil || c.Spray != nil {
		return 1
	}
	return len(c.Paths)
}

// withDefaults returns the connection with its defaults filled in.
func (c Connection) withDefaults() Connection {
	header, congestion := headerTCP, "cubic"
	if c.MPTCP {
		header, congestion = headerMPTCP, "lia"
	}
	c.Header = cmp.Or(c.Header, header)
	c.Segment = cmp.Or(c.Segment, frame-c.Header)
	c.Congestion = cmp.Or(c.Congestion, congestion)
	c.InitialWindow = cmp.Or(c.InitialWindow, cc.InitialWindow)
	c.MinRTO = cmp.Or(c.MinRTO, quality.MinRTO)
	c.StaleAfter = cmp.Or(c.StaleAfter, DefaultStaleAfter)
	return c
}

// CrossKind is the arrival process of cross traffic.
type CrossKind string

const (
	// CBR sends at a constant rate.
	CBR CrossKind = "cbr"
	// Poisson sends as a Poisson process.
	Poisson CrossKind = "poisson"
	// OnOff sends at a constant rate while on, and nothing while off. It starts off.
	OnOff CrossKind = "on-off"
)

// Cross is a source of datagrams without replies. TCP cross traffic is another Connection.
type Cross struct {
	Name string
	Kind CrossKind
	// Rate counts bytes on the link, where a datagram has Size; for OnOff it is the rate while
	// on.
	Rate unit.Bandwidth
	Size int
	// Payload is the payload of a numbered datagram, whose order is measured; 0: it is not.
	Payload int
	// Out are the links to the destination, as in Path. With a Gateway they are those of Paths.
	Out     []int
	Paths   []Path
	Gateway *Gateway
	// Reverse: the datagrams go the other way, through the tunnel of acknowledgments. With a Gateway
	// only.
	Reverse bool
	// Stop is when it ends, 0 for never.
	Start, Stop time.Duration
	// On and Off are the mean on and off times of OnOff, exponentially distributed, or with a
	// Pareto distribution of shape Pareto, which is more than 1.
	On, Off time.Duration
	Pareto  float64
}

// Change is a change of a link at a time. Changes are sorted by time.
type Change struct {
	At   time.Duration
	Link int
	linkmodel.Change
	// Down takes the link down: it drops its packets, and those that arrive. Up brings it up.
	Down, Up bool
}
