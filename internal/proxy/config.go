package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/daemon/control"
)

// Config is the `proxy:` section of a configuration file.
type Config struct {
	// Listeners are where clients connect to, and where their connections go.
	Listeners []Listener `yaml:"listeners"`
	// Congestion is the congestion control of MPTCP connections, as the kernel names it. Default:
	// tabane_cubic where it is loaded (tabane cc load cubic) and the host has cubic, else that of
	// the host. Example: bbr
	Congestion string `yaml:"congestion,omitempty"`
	// Drain is how long the connections of a process that was replaced (SIGUSR2) may go on. Default:
	// 1h. Example: 10m
	Drain time.Duration `yaml:"drain,omitempty"`
	// Finish is how long connections may go on at a clean stop (SIGTERM) before they are reset; new
	// ones are refused meanwhile. Keep it below TimeoutStopSec of systemd, 30s in the unit. Default:
	// 10s. Example: 20s
	Finish time.Duration `yaml:"finish,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and
	// root can use. Default: /run/tabane/proxy.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9113 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	// Example: "[::1]:9113"
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Listener is one place where clients connect to.
type Listener struct {
	// Listen is a scheme and a place: tcp and mptcp have an address and port ([::] is all
	// addresses, including IPv4), and each connection goes to an upstream; socks5 has an address
	// and port as well, and serves SOCKS5 and HTTP CONNECT; transparent has the interface whose
	// connections to others are captured.
	Listen Listen `yaml:"listen"`
	// Upstream is where connections go: scheme, host and port, or only the scheme to go where
	// clients request (socks5), connect to (transparent), or say in their PROXY header
	// (accept_proxy_protocol). With mptcp, a destination without MPTCP is connected by TCP.
	Upstream Upstream `yaml:"upstream,omitempty"`
	// Upstreams are several of them, in place of upstream: each connection goes to the one with the
	// fewest among those that answer. Example: ["mptcp://hq1.example:8080",
	// "mptcp://hq2.example:8080"]
	Upstreams []Upstream `yaml:"upstreams,omitempty"`
	// Allow are the prefixes of the clients that may connect. They are required unless the listener
	// is on a loopback address or transparent.
	Allow []netip.Prefix `yaml:"allow,omitempty"`
	// ReusePort lets several processes of the same user listen at the address, each with
	// reuse_port: the kernel gives each connection to one of them. Default: false. Example: true
	ReusePort bool `yaml:"reuse_port,omitempty"`
	// Match restricts what a transparent listener captures.
	Match Match `yaml:"match,omitempty"`
	// ProxyProtocol is the version of the PROXY header that each upstream gets, v1 or v2, with the
	// client's address. Default: none.
	ProxyProtocol HeaderVersion `yaml:"proxy_protocol,omitempty"`
	// AcceptProxyProtocol is true if each client is a proxy that sends a PROXY header of either
	// version. Example: true
	AcceptProxyProtocol bool `yaml:"accept_proxy_protocol,omitempty"`
	// Idle is how long a connection may have no data. Default: 1h. Example: 10m
	Idle time.Duration `yaml:"idle,omitempty"`
	// Pace spreads what is sent to clients over time: auto, at the rate of their congestion
	// control, or a rate that no connection exceeds. Default: none. Example: auto
	Pace Pace `yaml:"pace,omitempty"`
}

// Match is what a transparent listener captures.
type Match struct {
	// Ports are the destination ports. Default: all.
	Ports []uint16 `yaml:"ports,omitempty"`
}

const (
	defaultIdle   = time.Hour
	defaultDrain  = time.Hour
	defaultFinish = 10 * time.Second
	maxListeners  = 64
	maxUpstreams  = 16
	// maxControl bounds the name of a congestion control (TCP_CA_NAME_MAX of include/net/tcp.h).
	maxControl = 15
)

// idle returns Idle or its default.
func (l *Listener) idle() time.Duration { return cmp.Or(l.Idle, defaultIdle) }

// DrainTime returns Drain or its default.
func (c *Config) DrainTime() time.Duration { return cmp.Or(c.Drain, defaultDrain) }

// FinishTime returns Finish or its default.
func (c *Config) FinishTime() time.Duration { return cmp.Or(c.Finish, defaultFinish) }

// all returns the upstreams under either key.
func (l *Listener) all() []Upstream {
	if l.Upstream != (Upstream{}) {
		return []Upstream{l.Upstream}
	}
	return l.Upstreams
}

// Transparent reports whether a listener captures connections, for which the kernel is changed.
func (c *Config) Transparent() bool {
	return slices.ContainsFunc(c.Listeners, func(l Listener) bool { return l.Listen.Kind == Transparent })
}

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	var faults fault.List
	faults.Merge("", control.CheckPath(c.Control))
	if n := len(c.Listeners); n == 0 || n > maxListeners {
		faults.Add("listeners", "must be 1 to %d, got %d", maxListeners, n)
	}
	if len(c.Congestion) > maxControl || strings.ContainsFunc(c.Congestion, func(r rune) bool { return r <= ' ' || r > '~' }) {
		faults.Add("congestion", "must be the name of a congestion control, of at most %d letters, got %q", maxControl, c.Congestion)
	}
	if c.Drain < 0 {
		faults.Add("drain", "must be > 0, got %v", c.Drain)
	}
	if c.Finish < 0 {
		faults.Add("finish", "must be > 0, got %v", c.Finish)
	}
	seen := fault.Seen{}
	for i := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		faults.Merge(at, c.Listeners[i].check())
		if l := c.Listeners[i].Listen; l.Kind == Transparent {
			seen.Check(&faults, at, "listen", l.Interface)
		} else if l.Address.IsValid() {
			seen.Check(&faults, at, "listen", l.Address)
		}
	}
	return faults
}

func (l *Listener) check() fault.List {
	var faults fault.List
	if l.Listen.Kind == "" {
		faults.Add("listen", "must have a scheme and a place, like tcp://[::1]:8080")
		return faults
	}
	l.checkUpstreams(&faults)
	switch {
	case l.Listen.Kind == Transparent:
		if l.AcceptProxyProtocol {
			faults.Add("accept_proxy_protocol", "clients of a transparent listener do not know that there is a proxy")
		}
		if l.ReusePort {
			faults.Add("reuse_port", "is for listeners with an address, got %s", l.Listen)
		}
	case !l.Listen.Address.Addr().IsLoopback() && len(l.Allow) == 0:
		faults.Add("allow", `must have the prefixes of the clients, because %v is not a loopback address; ["::/0", "0.0.0.0/0"] is everybody`, l.Listen.Address.Addr())
	}
	if l.Listen.Kind != Transparent && len(l.Match.Ports) > 0 {
		faults.Add("match", "is for transparent listeners, got %s", l.Listen)
	}
	for i, p := range l.Allow {
		if p.IsValid() && p != p.Masked() {
			faults.Add(fmt.Sprintf("allow[%d]", i), "%s has host bits set; use %s", p, p.Masked())
		}
	}
	if slices.Contains(l.Match.Ports, 0) {
		faults.Add("match.ports", "must be > 0, got 0")
	}
	if l.Idle < 0 || l.Idle > 0 && l.Idle < time.Second {
		faults.Add("idle", "must be at least 1s, got %v", l.Idle)
	}
	return faults
}

func (l *Listener) checkUpstreams(faults *fault.List) {
	if l.Upstream != (Upstream{}) && len(l.Upstreams) > 0 {
		faults.Add("upstreams", "must not be given beside upstream")
		return
	}
	list := l.all()
	if len(list) == 0 || len(list) > maxUpstreams {
		faults.Add("upstream", "must be given, or 1 to %d upstreams, got %d", maxUpstreams, len(list))
		return
	}
	// Clients name the destination: by a request, by where they connect to, or in the PROXY header.
	chosen := l.Listen.Kind == Transparent || l.Listen.Kind == SOCKS || l.AcceptProxyProtocol
	for i, u := range list {
		path := "upstream"
		if len(l.Upstreams) > 0 {
			path = fmt.Sprintf("upstreams[%d]", i)
		}
		switch {
		case l.Listen.Kind == SOCKS && u.Host != "":
			faults.Add(path, "must be mptcp or tcp alone, because clients of %s name their destination, got %s", l.Listen, u)
		case u.Host == "" && len(list) > 1:
			faults.Add(path, "must have a host and a port, like %s://hq.example:8080, because there are several, got %s", u.Scheme(), u)
		case !chosen && u.Host == "":
			faults.Add(path, "must have a host and a port, like %s://hq.example:8080, got %s", u.Scheme(), u)
		case slices.Contains(list[:i], u):
			faults.Add(path, "%s is given twice", u)
		}
	}
}

// Warnings returns what is valid and may not be intended.
func (c *Config) Warnings() fault.List {
	var warnings fault.List
	for i := range c.Listeners {
		l := &c.Listeners[i]
		if (l.Listen.Kind == SOCKS || l.AcceptProxyProtocol && l.all()[0].Host == "") && slices.ContainsFunc(l.Allow, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
			warnings.Add(fmt.Sprintf("listeners[%d].allow", i), "lets everybody connect to everything through this host: an open relay")
		}
	}
	return warnings
}

// Summary describes the section in a few words.
func (c *Config) Summary() string {
	if len(c.Listeners) == 1 {
		return "1 listener"
	}
	return fmt.Sprintf("%d listeners", len(c.Listeners))
}
