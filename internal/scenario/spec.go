// Package scenario says what an experiment is (Spec) and what came out of it (Result). It knows no namespace, no
// simulator and no file: backends run a Spec, and report draws a Result.
package scenario

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// Spec is a whole scenario file: a network, and optionally an experiment to run on it.
type Spec struct {
	Name     string `yaml:"name"`
	Title    string `yaml:"title"`
	Question string `yaml:"question,omitempty"`
	// Sysctls are set on every node, before the node's own.
	Sysctls    map[string]string `yaml:"sysctls,omitempty"`
	Nodes      map[string]*Node  `yaml:"nodes"`
	Links      map[string]*Link  `yaml:"links"`
	Experiment *Experiment       `yaml:"experiment,omitempty"`
}

// Node is one host or router. Its sections are those that the daemons read from their own configuration files; a node may
// run several.
type Node struct {
	// Address is what the node's name means to the others; the first address of its first interface unless given.
	Address    netip.Addr        `yaml:"address,omitempty"`
	Forwarding bool              `yaml:"forwarding,omitempty"`
	Sysctls    map[string]string `yaml:"sysctls,omitempty"`
	Routes     []StaticRoute     `yaml:"routes,omitempty"`
	// MPTCP sets up the kernel's path manager where no daemon does.
	MPTCP         *MPTCP `yaml:"mptcp,omitempty"`
	role.Sections `yaml:",inline"`
}

// Link connects two ends by a wire, or more than two by a switch.
type Link struct {
	Ends []End `yaml:"ends"`
	// MTU in bytes; 1500 unless given.
	MTU int `yaml:"mtu,omitempty"`
	// Emulate makes a link that can do all that a Shape says, also when the scenario itself asks for no more than a rate.
	Emulate bool `yaml:"emulate,omitempty"`
	// Seed decides all that is random on an emulated link.
	Seed uint64 `yaml:"seed,omitempty"`
	// Schedule are changes of the shape in each run, whatever the case; times count from the request on. It makes the link
	// an emulated one.
	Schedule channel.Schedule `yaml:"schedule,omitempty"`
	Shape    `yaml:",inline"`
}

// End is one interface on a link.
type End struct {
	Node      string         `yaml:"node"`
	Interface string         `yaml:"interface"`
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
}

// The kinds of experiment.
const (
	// KindDelivery delivers every traffic over every transport in every case and measures at the client.
	KindDelivery = "delivery"
	// KindRoutes changes what is announced and measures when the routes have followed.
	KindRoutes = "routes"
)

// Experiment delivers traffic from a server to a client: every case with every traffic over every transport.
type Experiment struct {
	// Kind is KindDelivery unless given.
	Kind string `yaml:"kind,omitempty"`
	// Server and Client are node names.
	Server string `yaml:"server"`
	Client string `yaml:"client"`
	Trials int    `yaml:"trials"`
	// Routes is what an experiment of KindRoutes changes and watches.
	Routes     *Routes               `yaml:"routes,omitempty"`
	Cases      []Case                `yaml:"cases"`
	Traffic    map[string]*Traffic   `yaml:"traffic"`
	Transports map[string]*Transport `yaml:"transports"`
	// Baseline is the transport that gains are counted against.
	Baseline string        `yaml:"baseline,omitempty"`
	Expect   []Expectation `yaml:"expect,omitempty"`
	// Figures are what the report draws; the goodput of all cells unless given.
	Figures []Figure `yaml:"figures,omitempty"`
}

// Delivers reports whether the experiment is of KindDelivery.
func (e *Experiment) Delivers() bool { return e.Kind == "" || e.Kind == KindDelivery }

// Case returns the case of that name, which must be there.
func (e *Experiment) Case(name string) Case {
	return e.Cases[slices.IndexFunc(e.Cases, func(c Case) bool { return c.Name == name })]
}

// TrialsOf is how often each cell of a case is run: as often as asked for, unless that is 0; once in a quick pass; otherwise as
// the case says, or the experiment.
func (e *Experiment) TrialsOf(c Case, asked int, quick bool) int {
	switch {
	case asked > 0:
		return asked
	case quick:
		return 1
	}
	return cmp.Or(c.Trials, e.Trials)
}

// endless is more than a download brings in the time that a case gives it.
const endless = unit.TiB

// TrafficIn is the traffic of that name as it is in a case.
func (e *Experiment) TrafficIn(c Case, name string) *Traffic {
	t := e.Traffic[name]
	if t == nil || c.Duration == 0 {
		return t
	}
	own := *t
	own.Duration = c.Duration
	if own.Bytes > 0 {
		own.Bytes = max(own.Bytes, endless)
	}
	return &own
}

// Case is one setting of the links, "1.3", and what happens to them.
type Case struct {
	Name  string           `yaml:"name"`
	Title string           `yaml:"title,omitempty"`
	Links map[string]Shape `yaml:"links,omitempty"`
	// Settings replace those of the transports.
	Settings Settings `yaml:"settings,omitempty"`
	// Parameters are numbers that figures have along their axes.
	Parameters map[string]float64 `yaml:"parameters,omitempty"`
	// Change is what happens in an experiment of KindRoutes: ChangeAnnounce or ChangeWithdraw.
	Change string `yaml:"change,omitempty"`
	// Published are medians of metrics that others published for the case; figures show them beside what was measured.
	Published map[string]float64 `yaml:"published,omitempty"`
	// Events happen in every run of the case, in this order.
	Events []Event `yaml:"events,omitempty"`
	// Remaining are the links that a connection can use once the first event has happened, the first of them also where it used
	// none of them before, because routing moves it there; all of its transport unless
	// given. It says what the limit is from then on.
	Remaining []string `yaml:"remaining,omitempty"`
	// Duration is how long every delivery of the case lasts, instead of what its traffic says: a download brings as much as
	// there is time for. A quick pass goes by the traffic's bound.
	Duration time.Duration `yaml:"duration,omitempty"`
	// Trials is how often each cell of the case is run, instead of the experiment's.
	Trials int `yaml:"trials,omitempty"`
}

// Traffic is either a bulk download (Bytes, for Duration at most) or a constant bit rate (Rate for Duration).
type Traffic struct {
	Title    string         `yaml:"title,omitempty"`
	Bytes    unit.Size      `yaml:"bytes,omitempty"`
	Rate     unit.Bandwidth `yaml:"rate,omitempty"`
	Duration time.Duration  `yaml:"duration,omitempty"`
	// Quick bounds a run in a quick pass.
	Quick time.Duration `yaml:"quick"`
	// EventAt is when a case's events begin, from the request on; needed where a case has events.
	EventAt time.Duration `yaml:"event_at,omitempty"`
}

// Transport is how the client connects, and which limited links such a connection can use: they make its limit.
type Transport struct {
	Title string   `yaml:"title,omitempty"`
	MPTCP bool     `yaml:"mptcp,omitempty"`
	Links []string `yaml:"links"`
	// Routers is what the network's routers and reflectors run in an experiment of KindRoutes: RoutersEmbedded or
	// RoutersFRR. A kind of experiment that compares them has a transport for each.
	Routers string `yaml:"routers,omitempty"`
	// Model is what others simulated otherwise than it is. Such a transport there is in the simulator alone.
	Model    *Model `yaml:"model,omitempty"`
	Settings `yaml:",inline"`
}

// Model is what a simulation of others leaves out of a connection.
type Model struct {
	// Header is what links count of a segment beside its payload, in bytes; what IPv6 over Ethernet has unless given.
	Header int `yaml:"header,omitempty"`
	// AtOnce: all subflows are there from the begin, and none takes a handshake.
	AtOnce bool `yaml:"at_once,omitempty"`
	// MinRTO is the least retransmission timeout; Linux' 200 ms unless given.
	MinRTO time.Duration `yaml:"min_rto,omitempty"`
	// Uncounted: a subflow is given data for all of its window that is not in flight, and what waits there already is not counted
	// (the ns-2 program of paper B).
	Uncounted bool `yaml:"uncounted,omitempty"`
}

// Headers is what links count of a segment beside its payload, in bytes.
func (t *Transport) Headers() int {
	if t.Model != nil && t.Model.Header > 0 {
		return t.Model.Header
	}
	return traffic.Overhead{MPTCP: t.MPTCP}.Headers()
}

// Expectation is a bound that a run must keep to for the scenario to hold. Case, Traffic and Transport select the cells;
// empty selects all. The worst selected cell counts.
type Expectation struct {
	Name   string `yaml:"name"`
	Metric string `yaml:"metric"`
	// Case may have * for any part of a name: "lossy-*".
	Case      string `yaml:"case,omitempty"`
	Traffic   string `yaml:"traffic,omitempty"`
	Transport string `yaml:"transport,omitempty"`
	// Stat is the statistic over the trials: median unless given; min, max, mean, q1, q3.
	Stat string `yaml:"stat,omitempty"`
	// Relative divides the cell by something else: another metric of it ("limit_bps"), or the same metric of another transport
	// ("transport:tcp") or of another case ("case:1.1").
	Relative string   `yaml:"relative,omitempty"`
	AtLeast  *float64 `yaml:"at_least,omitempty"`
	AtMost   *float64 `yaml:"at_most,omitempty"`
}
