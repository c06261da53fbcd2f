package sim

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/cc"
	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/unit"
)

// Config is what is simulated. The same Config gives the same Result, bit for bit.
type Config struct {
	// Seed is what all randomness comes from. Each link and each source draws from streams of its
	// own, so that what is added at the end of a list does not change what the others draw.
	Seed uint64
	// Duration is how long is simulated.
	Duration    time.Duration
	Links       []Link
	Connections []Connection
	Cross       []Cross
	Changes     []Change
	// Series is the interval of the series in the result; 0 is for none.
	Series time.Duration
	// Bursts keeps every burst of every connection, with its time.
	Bursts bool
}

// Link is one direction of a link. What it sends arrives at the next link of the path, or at its
// end.
type Link struct {
	Name string
	channel.Profile
}

// Path is what a subflow uses. Out leads from the sender of data to its receiver, Back from there
// to the sender: indices of Config.Links, in the order of the way. Any number of paths may share a
// link.
type Path struct {
	Out, Back []int
	// Start is when the path is there, counted from the start of the connection: an address is
	// announced then.
	Start time.Duration
	// Backup: it is used only while no other path is usable (RFC 8684, section 3.3.8).
	Backup bool
	// Window replaces the connection's when it is not 0.
	Window unit.Size
	// Ratio is how many segments in succession the scheduler ratio gives to the path; 0 is 1.
	Ratio int
	// Rate is what the path is registered with at the schedulers dq and dqj; 0 is the least rate of
	// the links on the way out.
	Rate unit.Bandwidth
}

// Connection is one TCP connection, or one MPTCP connection with a subflow on each of its paths.
// Data goes one way.
type Connection struct {
	Name string
	// Start is when it begins; at Stop the application has nothing more to send, 0 is for never.
	Start, Stop time.Duration
	// Bytes is how much the application has to send, 0 is for no end. Rate is how fast it gets it,
	// 0 is for all at once.
	Bytes unit.Size
	Rate  unit.Bandwidth

	Paths []Path
	// MPTCP: there are data sequence numbers, and possibly several paths. Without it there is one
	// path.
	MPTCP bool
	// Scheduler is a name of package sched; MPTCP needs one, TCP has none. Congestion is a name of
	// package cc, cubic or with MPTCP lia if empty.
	Scheduler    string
	SchedOptions sched.Options
	Congestion   string

	// Segment is the payload of a full segment, and Header what links count beside it and for an
	// acknowledgement: 0 is what an Ethernet frame of 1514 bytes has (docs/adr/0005-limit.md).
	Segment, Header int
	// Window is the most that a subflow may have sent and not acknowledged, 0 is for no limit:
	// ns-2's window_, or a locked RTAX_CWND.
	Window unit.Size
	// RBuf is the rule of paper B, section 3.3: no new data while what was sent and not
	// data-acknowledged is more than this. 0 is for no limit.
	RBuf unit.Size
	// ReceiveBuffer is the receive window that all subflows share, counted from the data
	// acknowledgement on: data that is held out of order lies within it. 0 is no limit.
	ReceiveBuffer unit.Size
	// InitialReceive is what of ReceiveBuffer is offered at first, 0 is all. It grows with what the
	// application reads in a round trip, and held data also takes of the memory that it stands for
	// (dynamic right-sizing, Linux: mptcp_rcv_space_adjust).
	InitialReceive unit.Size
	// SendBuffer is the most that is kept until it is data-acknowledged. 0 is for no limit.
	SendBuffer unit.Size

	// DelayedACK acknowledges every second segment, or after 40 ms as Linux does; segments out of
	// order and those that fill a gap at once (RFC 5681, section 4.2). The first QuickACKs segments
	// of a subflow are acknowledged one by one (Linux: up to 16).
	DelayedACK bool
	QuickACKs  int
	// RACK selects Linux' loss recovery: RACK-TLP (RFC 8985), and the undo of reductions that DSACKs or
	// timestamps prove spurious. Without it losses are found by counting (RFC 6675).
	RACK bool
	// InitialWindow is in segments; 0 is cc.InitialWindow.
	InitialWindow int
	// MinRTO is the least retransmission timeout beyond SRTT; 0 is quality.MinRTO.
	MinRTO time.Duration
	// Handshake sends SYN, SYN/ACK and ACK, the receiver first, as a client does that asks for
	// content: data leaves 1.5 RTT after Start. Further subflows join when the first is there.
	// Otherwise subflows are there when they start.
	Handshake bool

	// Opportunistic retransmits what holds up the shared window over a path that has room, and
	// Penalize halves the congestion window of the subflow that holds it up, once a round trip
	// (Raiciu et al., How Hard Can It Be?, NSDI 2012, sections 4.1 and 4.2).
	Opportunistic, Penalize bool
	// Uncounted gives a subflow data for all of its congestion window that it does not see in
	// flight, in front of every new piece anew: what it was given before and waits for the window
	// is not counted. Nothing is sent again over another subflow. So does the program for ns-2 with
	// which the experiments of paper B were made (Nishida, MptcpAgent::send_control); it is no
	// other scheduler's way.
	Uncounted bool
	// StaleAfter is after how many timeouts in succession a subflow is not given new data until it
	// is acknowledged something; 0 is DefaultStaleAfter.
	StaleAfter int
}

// What a Connection has that says nothing of it.
const (
	// DefaultStaleAfter is Linux' net.mptcp.stale_loss_cnt.
	DefaultStaleAfter = 4

	frame       = 1514
	headerTCP   = 86  // Ethernet 14, IPv6 40, TCP 20, timestamps 12
	headerMPTCP = 114 // and DSS 28
)

// filled has the defaults in place.
func (c Connection) filled() Connection {
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

// CrossKind is how datagrams of cross traffic follow each other.
type CrossKind string

const (
	// CBR sends them evenly.
	CBR CrossKind = "cbr"
	// Poisson sends them at times that are independent of each other.
	Poisson CrossKind = "poisson"
	// OnOff sends them evenly while it is on, and none while it is off. It starts off.
	OnOff CrossKind = "on-off"
)

// Cross is a source of datagrams that nobody answers. TCP as cross traffic is another Connection.
type Cross struct {
	Name string
	Kind CrossKind
	// Rate is that of all Size bytes, which are what a link counts of a datagram; of OnOff it is
	// the rate while it is on.
	Rate unit.Bandwidth
	Size int
	// Out is the way they go, as in Path.
	Out []int
	// Stop of 0 is for never.
	Start, Stop time.Duration
	// On and Off are the means of the times that OnOff is on and off. They are exponentially
	// distributed, or with a Pareto distribution of this shape, more than 1.
	On, Off time.Duration
	Pareto  float64
}

// Change is what happens to a link at a time. Changes are in order of time.
type Change struct {
	At   time.Duration
	Link int
	channel.Change
	// Down: from now on the link loses what it has, and what arrives. Up ends that.
	Down, Up bool
}
