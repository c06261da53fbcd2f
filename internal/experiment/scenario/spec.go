// Package scenario specifies experiments (Spec): a network, what is delivered over it, and what is
// expected. It checks a Spec, computes the limits of its cells, and evaluates expectations on a
// result. It knows no namespace, no simulator and no file: backends run a Spec, and config reads
// it.
package scenario

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/role"
)

// Spec is a scenario: a network, and optionally an experiment to run on it.
type Spec struct {
	// Name is the scenario's name, and that of its lab: lower-case letters, digits, dots,
	// underscores and hyphens.
	Name string `yaml:"name"`
	// Title is the heading of the report.
	Title string `yaml:"title"`
	// Question is what the experiment answers.
	Question string `yaml:"question,omitempty"`
	// Base is another scenario whose sysctls, nodes and links this one has, changed by its own:
	// mappings are merged, lists and values are replaced, and null removes a key. A scenario
	// that comes with the program, or a file in the same directory. Example: epe-steady
	Base string `yaml:"base,omitempty"`
	// Family is the IP version of content, EPE addresses and sessions with egress peers: ipv6;
	// ipv4, which turns each address 2001:db8:X:Y::Z of the file into 10.X.Y.Z, except in sessions
	// with reflectors, locators and SIDs; or dual, which adds the IPv4 addresses, peers and
	// neighbors to those of the file. Default: ipv6. Example: ipv4
	Family Family `yaml:"family,omitempty"`
	// Sysctls are set on every node, before the node's own.
	// Example: {net.ipv4.tcp_congestion_control: reno}
	Sysctls map[string]string `yaml:"sysctls,omitempty"`
	// Nodes are the hosts and routers by name. Each name resolves to the node's address inside
	// the lab.
	Nodes map[string]*Node `yaml:"nodes"`
	// Links connect the nodes, by name.
	Links map[string]*Link `yaml:"links"`
	// Experiment is what is run on the network; a file without one is a network to work in.
	Experiment *Experiment `yaml:"experiment,omitempty"`
}

// Node is one host or router. Its sections are those that the daemons read from their own
// configuration files; a node may run several.
type Node struct {
	// Address is what the node's name resolves to. Default: the first address of its interface on
	// the first link of the file.
	// Example: "2001:db8:2::1"
	Address netip.Addr `yaml:"address,omitempty"`
	// Forwarding makes the node forward IPv4 and IPv6.
	Forwarding bool `yaml:"forwarding,omitempty"`
	// Masquerade is an interface of a router: packets that it forwards leave there with its own
	// address as source (NAT), as behind the router of a home. Example: line
	Masquerade string `yaml:"masquerade,omitempty"`
	// Sysctls are kernel settings of the node.
	// Example: {net.ipv4.tcp_rmem: "4096 131072 6291456"}
	Sysctls map[string]string `yaml:"sysctls,omitempty"`
	// Routes are static routes. Default: if no node has routes, and none runs a gateway, BGP or
	// exec, the shortest way to each network.
	Routes []StaticRoute `yaml:"routes,omitempty"`
	// MPTCP sets up the kernel's path manager on a node where no daemon does, such as a client.
	// Default: if the transports with mptcp leave out their links, the server advertises its
	// further addresses.
	MPTCP *MPTCP `yaml:"mptcp,omitempty"`
	// Ready is false for a node that a lab does not wait for. Default: true. Example: false
	Ready *bool `yaml:"ready,omitempty"`
	// Exec is a shell command that a lab runs as a daemon of the node, such as another router
	// implementation. It must stay in the foreground; its working directory has the node's
	// files.
	// Example: bird -f -c bird.conf -s bird.ctl
	Exec string `yaml:"exec,omitempty"`
	// Files are the contents of files for exec, by name. Example: {bird.conf: router id
	// 10.0.0.2;}
	Files         map[string]string `yaml:"files,omitempty"`
	role.Sections `yaml:",inline"`
}

// Link connects two ends directly, or more than two through a switch.
type Link struct {
	// Ends are the interfaces that the link connects: two directly, more through a switch.
	Ends []End `yaml:"ends"`
	// MTU is the largest packet in bytes. Default: 1500. Example: 9000
	MTU int `yaml:"mtu,omitempty"`
	// Emulate makes the link an emulated one, so that any shape can be set on it while the lab
	// runs, even if the scenario itself only needs a rate. Example: true
	Emulate bool `yaml:"emulate,omitempty"`
	// Seed is the seed of all randomness on an emulated link.
	Seed uint64 `yaml:"seed,omitempty"`
	// Schedule are changes of the shape in every run of every case. It makes the link an
	// emulated one.
	Schedule linkmodel.Schedule `yaml:"schedule,omitempty"`
	// Wire is what frames are like in a lab: ethernet, which pads them to 60 bytes, as every
	// Ethernet interface does, or veth, which leaves them as the kernel makes them. Default:
	// ethernet. Example: veth
	Wire string `yaml:"wire,omitempty"`
	// Trailer is what follows each packet in its frame after the padding, in bytes, as some
	// switches and drivers leave it. Frames of full size have none. Example: 4
	Trailer int `yaml:"trailer,omitempty"`
	// Tagged frames have a VLAN tag with a priority and without a virtual LAN (VID 0), as those of
	// some access lines have. Example: true
	Tagged bool `yaml:"tagged,omitempty"`
	// Offloads is whether the interfaces leave segmentation and checksums to each other, and merge
	// what they receive (TSO, GSO, GRO). Those of an emulated link do not. Default: true, or false
	// on a link whose rate is 100 Mbit/s or less. Example: false
	Offloads *bool `yaml:"offloads,omitempty"`
	Shape    `yaml:",inline"`

	order int // in the file
}

// SetOrder sets the position of the link among those of its file, from 1.
func (l *Link) SetOrder(n int) { l.order = n }

// Order is the position of the link among those of its file, 0 if it is from no file.
func (l *Link) Order() int { return l.order }

// LinkNames returns the names of the links in the order of the file, and those from no file by
// name.
func (s *Spec) LinkNames() []string {
	return slices.SortedFunc(maps.Keys(s.Links), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.orderOf(a), s.orderOf(b)), cmp.Compare(a, b))
	})
}

func (s *Spec) orderOf(link string) int {
	if l := s.Links[link]; l != nil {
		return l.order
	}
	return 0
}

// The kinds of Link.Wire.
const (
	WireEthernet = "ethernet"
	WireVeth     = "veth"
)

// MaxTrailer bounds Link.Trailer, in bytes.
const MaxTrailer = 64

// withoutOffloads is the highest rate at which a link has no offloads unless it asks for them:
// 8,200 frames of full size per second, which cost little. The whole of an unlimited link is
// several times as fast with them.
const withoutOffloads = 100 * unit.MbitPerSecond

// HasOffloads reports whether the interfaces of the link have offloads.
func (l *Link) HasOffloads() bool {
	if l.Offloads != nil {
		return *l.Offloads
	}
	return l.Wire == WireVeth || l.Rate == 0 || l.Rate > withoutOffloads
}

// End is one interface on a link.
type End struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the name of the node's interface on the link. Default: the link's name.
	// Example: path1
	Interface string `yaml:"interface,omitempty"`
	// Addresses are the interface's addresses with their prefix lengths. Default: if no end of the
	// link has any, 2001:db8:ff:LINK::END/64, both numbers counted from 1 in the order of the file.
	// Example: ["2001:db8:1::1/64"]
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
}

// The kinds of experiment.
const (
	// KindDelivery delivers every traffic over every transport in every case and measures at
	// the client.
	KindDelivery = "delivery"
	// KindRoutes changes an advertisement and measures when the routes have changed.
	KindRoutes = "routes"
	// KindWeb plays tasks on web pages in a browser at the client.
	KindWeb = "web"
)

// Experiment delivers traffic from a server to a client: every case with every traffic over every
// transport.
type Experiment struct {
	// Kind is delivery, which delivers every traffic over every transport in every case and
	// measures at the client; routes, which changes an advertisement and measures when
	// routes have changed; or web, which plays tasks on web pages in a browser at the client.
	// Default: delivery.
	Kind string `yaml:"kind,omitempty"`
	// Server is the node that serves.
	Server string `yaml:"server"`
	// Client is the node that fetches.
	Client string `yaml:"client"`
	// Trials is how often each cell is run. Default: 1. Example: 12
	Trials int `yaml:"trials,omitempty"`
	// LabTrials is how often each cell is run in a lab, where a run takes its time. Default:
	// trials.
	// Example: 5
	LabTrials int `yaml:"lab_trials,omitempty"`
	// Routes is what an experiment of kind routes changes and observes.
	Routes *Routes `yaml:"routes,omitempty"`
	// Visitors are where the load of an experiment of kind web comes from. Default: from the
	// client, over each link between it and the server that has a rate.
	Visitors *Visitors `yaml:"visitors,omitempty"`
	// Cases are settings of the network, each with its events.
	Cases []Case `yaml:"cases"`
	// Traffic are the deliveries by name.
	Traffic map[string]*Traffic `yaml:"traffic"`
	// Transports are the ways in which the client connects, by name.
	Transports map[string]*Transport `yaml:"transports"`
	// Baseline is the transport that gains are relative to.
	Baseline string `yaml:"baseline,omitempty"`
	// BestOf are transports with one link each: the metrics share_of_best and share_of_bound relate
	// the goodput of all transports to theirs. Example: [tcp-a, tcp-b]
	BestOf []string `yaml:"best_of,omitempty"`
	// Expect are bounds on the result. If one does not hold, the exit code is 1.
	Expect []Expectation `yaml:"expect,omitempty"`
	// Figures are what the report draws. Default: the goodput of all cells.
	Figures []Figure `yaml:"figures,omitempty"`
	// Quick selects the cells of a quick pass; the command line may choose others. Default: all.
	Quick Selection `yaml:"quick,omitempty"`
	// notRun are expectations that need cells that a Selection left out.
	notRun []Expectation
}

// Delivers reports whether the experiment is of KindDelivery.
func (e *Experiment) Delivers() bool { return e.Kind == "" || e.Kind == KindDelivery }

// Case returns the named case, which must exist.
func (e *Experiment) Case(name string) Case {
	return e.Cases[slices.IndexFunc(e.Cases, func(c Case) bool { return c.Name == name })]
}

// TrialsOf returns the number of trials of each cell of a case: asked unless that is 0, 1 in a
// quick pass, otherwise that of the case or the experiment.
func (e *Experiment) TrialsOf(c Case, asked int, quick bool) int {
	switch {
	case asked > 0:
		return asked
	case quick:
		return 1
	}
	return cmp.Or(c.Trials, e.Trials)
}

// endless is more than a download transfers in the duration of a case.
const endless = unit.TiB

// TrafficIn returns the named traffic with the duration, the rate and the form of pages of the
// case.
func (e *Experiment) TrafficIn(c Case, name string) *Traffic {
	t := e.Traffic[name]
	if t == nil || c.Duration == 0 && c.Rates[name] == 0 && c.Web == (WebForm{}) {
		return t
	}
	own := *t
	if t.Web != nil {
		web := *t.Web
		web.HTTP, web.Heavy = cmp.Or(c.Web.HTTP, web.HTTP), web.Heavy || c.Web.Heavy
		own.Web = &web
	}
	own.Rate = cmp.Or(c.Rates[name], t.Rate)
	if c.Duration == 0 {
		return &own
	}
	own.Duration = c.Duration
	if own.Bytes > 0 && own.Objects == 0 {
		own.Bytes = max(own.Bytes, endless)
	}
	return &own
}

// Case is a setting of the links and its events.
type Case struct {
	// Name identifies the case.
	Name string `yaml:"name"`
	// Title is the case's name in reports.
	Title string `yaml:"title,omitempty"`
	// Links are the shapes of links in this case, by the link's name. Each replaces the shape
	// of the link as a whole.
	Links map[string]Shape `yaml:"links,omitempty"`
	// Rates replace the rates of constant bit rate traffic, by its name. Example: {cbr: 42Mbit/s}
	Rates map[string]unit.Bandwidth `yaml:"rates,omitempty"`
	// Settings replace those of the transports.
	Settings Settings `yaml:"settings,omitempty"`
	// Ratio is that of gateways with the discipline ratio in transports without a ratio of their
	// own, so that a figure can have it as an axis. Default: 1 for every link. Example: "16:3"
	Ratio string `yaml:"ratio,omitempty"`
	// Parameters are numbers by name, for the axes of figures.
	Parameters map[string]float64 `yaml:"parameters,omitempty"`
	// Change is what an experiment of kind routes does: announce or withdraw.
	Change string `yaml:"change,omitempty"`
	// Published are published values for the case; figures show them beside the measured ones.
	Published []Published `yaml:"published,omitempty"`
	// Events are applied in every run of the case, in this order.
	Events []Event `yaml:"events,omitempty"`
	// Connections run beside that of the cell and compete with it.
	Connections []Connection `yaml:"connections,omitempty"`
	// Load is the rate of the visits of other users in an experiment of kind web, as a share of the
	// rate of each link that they use. Visits use TCP over one link each.
	Load float64 `yaml:"load,omitempty"`
	// Web is the form of the pages in an experiment of kind web, in place of that of the traffic.
	Web WebForm `yaml:"web,omitempty"`
	// Settle is how long all connections run before their shares are measured. Example: 5s
	Settle time.Duration `yaml:"settle,omitempty"`
	// Remaining are the links that a connection can use after the first event. The first of
	// them counts even if the connection used none of them before, because routing moves it
	// there. The limit is computed from them from then on. Default: all links of the transport.
	Remaining []string `yaml:"remaining,omitempty"`
	// Duration is how long every delivery of the case lasts, instead of the duration of its
	// traffic: a download transfers as much as it can in that time. A quick pass keeps the
	// traffic's bound.
	Duration time.Duration `yaml:"duration,omitempty"`
	// Trials is how often each cell of the case is run, instead of the experiment's. Example:
	// 10
	Trials int `yaml:"trials,omitempty"`
}

// Published is a published value of a metric of a case.
type Published struct {
	// Metric is the metric's name. Example: goodput_after_bps
	Metric string `yaml:"metric"`
	// Traffic is the traffic that the value is of. Default: all.
	Traffic string `yaml:"traffic,omitempty"`
	// Transport is the transport that the value is of. Default: all.
	Transport string `yaml:"transport,omitempty"`
	// Value is the published value in the metric's unit. Example: 45000000
	Value float64 `yaml:"value"`
	// Source names the publication and the place in it. Example: Paper A, Fig. 9
	Source string `yaml:"source"`
}

// PublishedOf returns the published value for a metric of a cell of the case.
func (c Case) PublishedOf(metric, traffic, transport string) (Published, bool) {
	i := slices.IndexFunc(c.Published, func(p Published) bool {
		return p.Metric == metric && (p.Traffic == "" || p.Traffic == traffic) && (p.Transport == "" || p.Transport == transport)
	})
	if i < 0 {
		return Published{}, false
	}
	return c.Published[i], true
}

// Traffic is either a bulk download (Bytes, for Duration at most), a constant bit rate (Rate for
// Duration), or tasks on web pages (Web).
type Traffic struct {
	// Title is the traffic's name in reports.
	Title string `yaml:"title,omitempty"`
	// Bytes is the size of a download, as fast as the network carries it. Exclusive with rate.
	Bytes unit.Size `yaml:"bytes,omitempty"`
	// Rate is the rate of a constant bit rate stream. It needs duration.
	Rate unit.Bandwidth `yaml:"rate,omitempty"`
	// Duration is how long a stream lasts, or the most that a download or a task may take.
	Duration time.Duration `yaml:"duration,omitempty"`
	// Live ends a constant bit rate when its duration is over, with what has arrived by then: what
	// is late is lost. Example: true
	Live bool `yaml:"live,omitempty"`
	// Quick is the most that a run may take in a quick pass; of a task on web pages, the longest
	// sum of its think times. Default: 10s, or duration if that is less. Example: 5s
	Quick time.Duration `yaml:"quick,omitempty"`
	// Datagram makes it a stream of numbered UDP datagrams with so much payload in bytes, instead
	// of a TCP connection. Example: 1000
	Datagram int `yaml:"datagram,omitempty"`
	// Objects fetches so many objects of bytes each, one after the other on one connection.
	// Example: 100
	Objects int `yaml:"objects,omitempty"`
	// NewConnections fetches each object on a connection of its own.
	NewConnections bool `yaml:"new_connections,omitempty"`
	// Beside is how many downloads run beside it over the same transport, from 3 s before it on
	// until it ends. Its own rate or time is what is measured. Default: none. Example: 1
	Beside int `yaml:"beside,omitempty"`
	// Upload sends the data from the client to the server. Example: true
	Upload bool `yaml:"upload,omitempty"`
	// EventAt is the start of the case's events, from the request on. It is required if a case
	// has events.
	EventAt time.Duration `yaml:"event_at,omitempty"`
	// Web is a task on web pages, in an experiment of kind web.
	Web *Web `yaml:"web,omitempty"`
}

// BesideLead is how long the downloads of Traffic.Beside run before the traffic begins.
const BesideLead = 3 * time.Second

// MaxBeside bounds Traffic.Beside.
const MaxBeside = 100

// Total returns the size of a download with all its objects.
func (t *Traffic) Total() unit.Size { return t.Bytes * unit.Size(max(1, t.Objects)) }

// Transport is how the client connects, and which limited links such a connection can use.
type Transport struct {
	// Title is the transport's name in reports.
	Title string `yaml:"title,omitempty"`
	// MPTCP makes the client connect over MPTCP instead of TCP.
	MPTCP bool `yaml:"mptcp,omitempty"`
	// HTTP3 makes the client fetch over HTTP/3, with quic-go at both ends. Only a lab has it.
	// Example: true
	HTTP3 bool `yaml:"http3,omitempty"`
	// Chromium makes headless Chromium the client of http3. Example: true
	Chromium bool `yaml:"chromium,omitempty"`
	// Links are the links with a limited rate that such a connection can use. Its limit is computed
	// from them. Default: the slowest link of each way from the server to the client, of which no
	// two have a link in common, the shortest first; without mptcp and gateway only that of the
	// shortest. Example: [path1, path2]
	Links []string `yaml:"links,omitempty"`
	// Via is the egress peer that all packets to the client leave through: the connection is to its
	// EPE address, and without further subflows. Default: routing decides. Example: transit-b
	Via string `yaml:"via,omitempty"`
	// Delivery is how packets from the default addresses of the server's edge reach clients, in
	// place of the default of its delivery. What it learned of paths and networks is forgotten
	// before each run. Only a lab has it. Default: as the server's edge has it. Example: {single:
	// transit-b}
	Delivery edge.Mode `yaml:"delivery,omitempty"`
	// Port is the server's port that the client connects to, one of serve.ports. Default:
	// serve.port.
	Port uint16 `yaml:"port,omitempty"`
	// Gateway makes a pair of gateways carry each connection over all links.
	Gateway *Gateway `yaml:"gateway,omitempty"`
	// Proxies is true if a pair of proxies at the ends of the links carries each connection over
	// MPTCP on all links, while client and server have TCP. Gateways do not run meanwhile. Example:
	// true
	Proxies bool `yaml:"proxies,omitempty"`
	// Routers is what the network's routers and reflectors run in an experiment of kind routes:
	// embedded or frr.
	Routers string `yaml:"routers,omitempty"`
	// Model are simplifications of published simulations. A transport with a model runs in the
	// simulator only.
	Model    *Model `yaml:"model,omitempty"`
	Settings `yaml:",inline"`
}

// Multipath reports whether MPTCP carries the transport's connections over its links, from end to
// end or between proxies.
func (t *Transport) Multipath() bool { return t.MPTCP || t.Proxies }

// Model are the simplifications of a published simulation.
type Model struct {
	// Header is what links count of a segment beside its payload, in bytes. Default: the
	// headers of IPv6 over Ethernet.
	Header int `yaml:"header,omitempty"`
	// AtOnce establishes all subflows at the start, without handshakes.
	AtOnce bool `yaml:"at_once,omitempty"`
	// MinRTO is the minimum retransmission timeout. Default: 200ms, as in Linux.
	// Example: 1s
	MinRTO time.Duration `yaml:"min_rto,omitempty"`
	// MinThreshold is the minimum of the slow start threshold after a loss, in segments, of at most 100.
	// Default: that of the congestion control, 1 of coupled olia and balia, 2 of the others.
	MinThreshold int `yaml:"min_threshold,omitempty"`
	// Uncounted schedules data on a subflow for its whole free window, without counting the
	// data that is already queued on it (as the ns-2 program of paper B does).
	Uncounted bool `yaml:"uncounted,omitempty"`
}

// Expectation is a bound that a run must keep to for the scenario to hold. Case, Traffic and
// Transport select the cells; empty selects all. The worst selected cell counts.
type Expectation struct {
	// Name describes what is expected.
	Name string `yaml:"name"`
	// Source makes the expectation a published difference and says where it is published. It is
	// tested for significance with all others of the experiment, and the outcome does not change
	// the exit code. It has relative, to a transport or a case, and one bound. Example: "Paper E,
	// Fig. 3"
	Source string `yaml:"source,omitempty"`
	// Metric is the name of the metric.
	Metric string `yaml:"metric"`
	// Case selects a case; * matches any part of a name: "lossy-*". Default: all cases.
	Case string `yaml:"case,omitempty"`
	// Traffic selects a traffic. Default: all.
	Traffic string `yaml:"traffic,omitempty"`
	// Transport selects a transport. Default: all.
	Transport string `yaml:"transport,omitempty"`
	// Backend is the only backend that is judged: lab, where processes and other load take time, or
	// sim.
	// Default: both. Example: sim
	Backend string `yaml:"backend,omitempty"`
	// Stat is the statistic over the trials: min, q1, median, mean, q3 or max. Default: median.
	Stat string `yaml:"stat,omitempty"`
	// Relative divides the value by another metric of the cell ("limit_bps"), or by the same
	// metric of another transport ("transport:tcp") or case ("case:1.1").
	Relative string `yaml:"relative,omitempty"`
	// AtLeast is the lower bound. The worst selected cell counts.
	AtLeast *float64 `yaml:"at_least,omitempty"`
	// AtMost is the upper bound. The worst selected cell counts.
	AtMost *float64 `yaml:"at_most,omitempty"`
}
