// Package congestion loads and unloads congestion controls, and lists what uses them on this host:
// network namespaces by their sysctl, connections and listening sockets.
//
// It does not set the control of sockets; the programs that open them do. Package bpf/mptcp/cc has
// the eBPF programs.
package congestion

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/ccbpf"
)

// Sysctl is the parameter of a network namespace that names the control of new sockets.
const Sysctl = "net.ipv4.tcp_congestion_control"

// Host is the congestion controls of this host. The zero value has those of DefaultDir.
type Host struct {
	// Dir is where they are pinned, Prefix that of their names in the kernel; both may be empty.
	Dir, Prefix string
}

// Names returns the names of the controls that can be loaded.
func Names() []string { return ccbpf.Names() }

// KernelName returns the name by which sysctls and sockets choose a control.
func (h Host) KernelName(name string) string {
	return cmp.Or(h.Prefix, ccbpf.DefaultPrefix) + name
}

// Outcome is what Load did.
type Outcome = ccbpf.Outcome

// The outcomes of Load.
const (
	Loaded    = ccbpf.Loaded
	Replaced  = ccbpf.Replaced
	Unchanged = ccbpf.Unchanged
)

// ErrTaken is returned by Load when a control that it did not load has the name.
var ErrTaken = ccbpf.ErrTaken

// Ratio is the control whose subflows have rates, at most MaxRates of them.
const (
	Ratio    = ccbpf.Ratio
	MaxRates = ccbpf.MaxRates
	MaxRate  = ccbpf.MaxRate
)

// Options are the parameters of Load.
type Options struct {
	// Pace makes sockets pace their packets instead of sending bursts.
	Pace bool
	// Lowat bounds the unsent data of MPTCP subflows, and paces those below 400 Mbit/s.
	Lowat bool
	// Rates are those of the subflows for Ratio, at most MaxRates.
	Rates []unit.Bandwidth
}

// Defaults returns the default options of a control.
func Defaults(name string) Options {
	o := ccbpf.Defaults(name)
	return Options{Pace: o.Pace, Lowat: o.Lowat}
}

// Load loads a control, or replaces another version of it. It returns a *feature.Error if this host
// cannot load it.
func (h Host) Load(name string, o Options) (Outcome, error) {
	return ccbpf.Load(name, ccbpf.Options{Dir: h.Dir, Prefix: h.Prefix, Pace: o.Pace, Lowat: o.Lowat, Rates: o.Rates})
}

// Status is what is loaded, and what uses it.
type Status struct {
	Controls    []Control    `json:"controls"`
	Connections []Connection `json:"connections"`
	Listeners   []Listener   `json:"listeners"`
}

// Control is a control that is loaded, or that sockets still use although it is unloaded.
type Control struct {
	Name string `json:"name"`
	// Version is empty if the control is not loaded. Current is set if Load would not change it.
	Version string `json:"version,omitempty"`
	Current bool   `json:"current"`
	// Elsewhere is set if the control is loaded, and its pins are in another mount namespace: all
	// network namespaces have the same controls.
	Elsewhere bool `json:"elsewhere,omitempty"`
	Paced     bool `json:"paced"`
	// Lowat is set if MPTCP subflows bound their unsent data.
	Lowat bool `json:"lowat"`
	// Rates are those of the subflows of Ratio in bit/s, 0 for no limit.
	Rates []unit.Bandwidth `json:"rates_bps,omitempty"`
	// Repairs counts the windows and thresholds of a skipped program that were contained.
	Repairs uint64 `json:"repairs"`
	// Namespaces are those whose sysctl names the control, Sockets counts subflows and TCP
	// connections.
	Namespaces []string `json:"namespaces,omitempty"`
	Sockets    int      `json:"sockets"`
}

// Connection is an MPTCP connection, or a TCP connection with one subflow and no token.
type Connection struct {
	Namespace string    `json:"namespace"`
	Token     uint32    `json:"token,omitempty"`
	Subflows  []Subflow `json:"subflows"`
}

// Subflow is a subflow that uses one of the controls.
type Subflow struct {
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	Control string         `json:"control"`
	// Window is the congestion window in segments, now, averaged over the time with data in
	// flight, and the largest.
	Window        uint32  `json:"window"`
	MeanWindow    float64 `json:"mean_window"`
	HighestWindow uint32  `json:"highest_window"`
	SRTT          float64 `json:"srtt_seconds"`
	// Losses counts recoveries, Timeouts expiries of the retransmission timer.
	Losses   uint32 `json:"losses"`
	Timeouts uint32 `json:"timeouts"`
	// Limited is the share of the time with data in flight in which the congestion window was the
	// limit.
	Limited float64 `json:"window_limited"`
	// PerRoundTrip is the last increase for a window of acknowledgments in congestion avoidance, in
	// segments: 1 for NewReno. Alpha is the increase for a segment times the windows of all
	// subflows, for LIA that of RFC 6356.
	PerRoundTrip float64 `json:"increase_per_rtt"`
	Alpha        float64 `json:"alpha"`
	Repairs      uint32  `json:"repairs"`
	Acks         uint64  `json:"acks"`
}

// Listener is a listening socket whose control is not that of its namespace, and one of the two is
// of this program. Subflows that join a connection get the listener's control, whatever the sysctl
// says.
type Listener struct {
	Namespace string         `json:"namespace"`
	Address   netip.AddrPort `json:"address"`
	Control   string         `json:"control"`
	// Sysctl is the control of the namespace.
	Sysctl string `json:"sysctl"`
}

// Status examines the whole host.
func (h Host) Status() (Status, error) {
	registered, err := available() // before those that are pinned, as others may load some
	if err != nil {
		return Status{}, err
	}
	loaded, err := ccbpf.List(h.Dir)
	if err != nil {
		return Status{}, err
	}
	s := &survey{prefix: h.KernelName(""), names: ccbpf.MapNames{}}
	for _, i := range loaded {
		s.Controls = append(s.Controls, Control{
			Name: h.KernelName(i.Name), Version: string(i.Version), Current: i.Current, Paced: i.Version.Paced(), Lowat: i.Version.Lowat(), Repairs: i.Repairs, Rates: i.Rates,
		})
	}
	for _, name := range Names() {
		if name = h.KernelName(name); slices.Contains(registered, name) {
			c := s.control(name)
			c.Elsewhere = c.Version == ""
		}
	}
	all, err := netns.All()
	if err != nil {
		return Status{}, err
	}
	for _, n := range all {
		err := n.Do(func() error { return s.examine(n.String()) })
		// It went while it was examined.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Status{}, err
		}
	}
	return s.Status, nil
}

// Listeners returns the listening sockets of the calling thread's network namespace that have
// another control than it.
func (h Host) Listeners() ([]Listener, error) {
	s := &survey{prefix: h.KernelName(""), names: ccbpf.MapNames{}}
	err := s.examine("")
	return s.Status.Listeners, err
}

// survey collects the status of the namespaces.
type survey struct {
	Status
	prefix string
	names  ccbpf.MapNames
}

// control returns the entry of a control, which it adds if it is no longer loaded.
func (s *survey) control(name string) *Control {
	at := slices.IndexFunc(s.Controls, func(c Control) bool { return c.Name == name })
	if at < 0 {
		at = len(s.Controls)
		s.Controls = append(s.Controls, Control{Name: name})
	}
	return &s.Controls[at]
}

func (s *survey) ours(control string) bool { return strings.HasPrefix(control, s.prefix) }

// examine adds what is in the network namespace of the calling thread.
func (s *survey) examine(namespace string) error {
	sysctl, err := netns.ReadSysctl(Sysctl)
	if err != nil {
		return err
	}
	if s.ours(sysctl) {
		c := s.control(sysctl)
		c.Namespaces = append(c.Namespaces, namespace)
	}
	d, err := mptcp.DialDiag()
	if err != nil {
		return err
	}
	first := len(s.Connections)
	for _, family := range []mptcp.Family{mptcp.IPv4, mptcp.IPv6} {
		var failed error
		err = errors.Join(err, d.Storages(family, func(socket *mptcp.Socket, storages []mptcp.Storage) {
			failed = errors.Join(failed, s.socket(namespace, sysctl, first, socket, storages))
		}), failed)
	}
	for _, c := range s.Connections[first:] {
		c.setAlpha()
	}
	return errors.Join(err, d.Close())
}

// socket adds a socket. Connections of its namespace are those from first on.
func (s *survey) socket(namespace, sysctl string, first int, socket *mptcp.Socket, storages []mptcp.Storage) error {
	if socket.State == mptcp.Listening {
		if socket.Congestion != sysctl && (s.ours(sysctl) || s.ours(socket.Congestion)) {
			s.Listeners = append(s.Listeners, Listener{Namespace: namespace, Address: socket.Local, Control: socket.Congestion, Sysctl: sysctl})
		}
		return nil
	}
	if !s.ours(socket.Congestion) {
		return nil
	}
	s.control(socket.Congestion).Sockets++
	sub := Subflow{
		Local: socket.Local, Remote: socket.Remote, Control: socket.Congestion,
		Window: socket.Window, SRTT: socket.RTT.Seconds(),
	}
	for _, v := range storages {
		if !s.names.Has(v.Map) {
			continue
		}
		st, err := ccbpf.DecodeStats(v.Value)
		if err != nil {
			return err
		}
		// A socket that had another control keeps the statistics of both.
		if st.Acks > 0 && st.Acks >= sub.Acks {
			sub.set(st)
		}
	}
	at := -1
	if socket.Token != 0 {
		at = slices.IndexFunc(s.Connections[first:], func(c Connection) bool { return c.Token == socket.Token })
	}
	if at < 0 {
		at = len(s.Connections) - first
		s.Connections = append(s.Connections, Connection{Namespace: namespace, Token: socket.Token})
	}
	c := &s.Connections[first+at]
	c.Subflows = append(c.Subflows, sub)
	return nil
}

func (sub *Subflow) set(st ccbpf.Stats) {
	// The window may have grown with the acknowledgment at which it was last counted.
	sub.MeanWindow, sub.HighestWindow = st.MeanWindow, max(st.HighestWindow, sub.Window)
	sub.Losses, sub.Timeouts, sub.Repairs, sub.Acks = st.Losses, st.Timeouts, st.Repairs, st.Acks
	if st.Busy > 0 {
		sub.Limited = float64(st.Limited) / float64(st.Busy)
	}
	sub.PerRoundTrip, sub.Alpha = st.Increase*float64(sub.Window), st.Increase
}

// setAlpha multiplies the increases for a segment by the total window.
func (c Connection) setAlpha() {
	total := uint32(0)
	for _, sub := range c.Subflows {
		total += sub.Window
	}
	for i := range c.Subflows {
		c.Subflows[i].Alpha *= float64(total)
	}
}

// InUse is the error of Unload for a control that is in use.
type InUse struct{ Control Control }

func (e *InUse) Error() string {
	var by []string
	if n := e.Control.Sockets; n == 1 {
		by = append(by, "1 connection or subflow")
	} else if n > 1 {
		by = append(by, fmt.Sprintf("%d connections or subflows", n))
	}
	if len(e.Control.Namespaces) > 0 {
		by = append(by, Sysctl+" in "+strings.Join(e.Control.Namespaces, ", "))
	}
	return "in use by " + strings.Join(by, " and ")
}

// Unload removes a control. It returns an *InUse if the sysctl of a network namespace names it or a
// socket uses it, unless force is set: it then resets those sysctls first, and sockets keep the
// control until they are closed. It returns the namespaces whose sysctl it reset. The error matches
// fs.ErrNotExist if the control is not loaded.
func (h Host) Unload(name string, force bool) (reset []string, err error) {
	status, err := h.Status()
	if err != nil {
		return nil, err
	}
	kernelName := h.KernelName(name)
	at := slices.IndexFunc(status.Controls, func(c Control) bool { return c.Name == kernelName })
	switch {
	case at < 0 || status.Controls[at].Version == "":
		return nil, ccbpf.Unload(h.Dir, name)
	case !force && (status.Controls[at].Sockets > 0 || len(status.Controls[at].Namespaces) > 0):
		return nil, &InUse{status.Controls[at]}
	case force:
		if reset, err = resetSysctls(kernelName); err != nil {
			return reset, err
		}
	}
	return reset, ccbpf.Unload(h.Dir, name)
}

// resetSysctls replaces a control in the sysctls of all network namespaces.
func resetSysctls(name string) (reset []string, err error) {
	all, err := netns.All()
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		err := n.Do(func() error {
			current, err := netns.ReadSysctl(Sysctl)
			if err != nil || current != name {
				return err
			}
			instead, err := substitute()
			if err == nil {
				err = netns.Sysctl(Sysctl, instead)
			}
			if err == nil {
				reset = append(reset, n.String())
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return reset, err
		}
	}
	return reset, nil
}

// substitute returns Linux' default control, or what every kernel has.
func substitute() (string, error) {
	list, err := available()
	if err != nil {
		return "", err
	}
	if slices.Contains(list, "cubic") {
		return "cubic", nil
	}
	return "reno", nil
}

// available returns the names of all congestion controls that the kernel has.
func available() ([]string, error) {
	list, err := netns.ReadSysctl("net.ipv4.tcp_available_congestion_control")
	return strings.Fields(list), err
}
