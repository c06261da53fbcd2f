// Package role is the table of tabane's daemons. A Descriptor has everything that other packages
// need about a daemon: its section in a configuration file, how it starts and reloads, the address
// of its status, its requirements on the host, and the kernel objects that it owns.
//
// The package runs nothing and reads no files. A new daemon consists of its package, its field in
// Sections and its Descriptor in table.go; the configuration reader, scenarios, the lab, the
// command line and the doctor use these.
package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Machine is a running daemon.
type Machine interface {
	// Run blocks until ctx ends, and then cleans up.
	Run(ctx context.Context) error
	// Status returns the value that /status serves as JSON.
	Status() any
}

// Section is a daemon's part of a configuration file.
type Section interface {
	// Check returns all faults of the section. It does not access the system.
	Check() fault.List
}

// Options are a daemon's start options other than its section.
type Options struct {
	// Keep leaves the daemon's kernel state in place when it stops cleanly.
	Keep bool
	// Inherited are the sockets of a process that this one replaces; nil: none.
	Inherited *handover.Sockets
	Log       *slog.Logger
}

// Need is a requirement of a daemon on its host.
type Need string

// The needs of daemons. The package doctor checks them.
const (
	// NetAdmin is CAP_NET_ADMIN.
	NetAdmin Need = "privilege"
	// Namespaces is CAP_NET_ADMIN and CAP_SYS_ADMIN, which a lab needs.
	Namespaces Need = "namespaces"
	// SRv6 is encapsulation to a SID, and End.DT6.
	SRv6 Need = "SRv6"
	// TUN is the TUN device.
	TUN Need = "TUN"
	// MPTCP is multipath TCP (RFC 8684).
	MPTCP Need = "MPTCP"
)

// Host is what a section requires of the host it runs on.
type Host struct {
	// ASN and RouterID identify the daemon's BGP speaker; zero for a daemon without one.
	ASN      uint32
	RouterID netip.Addr
	// Uses lists the addresses and interfaces that must exist.
	Uses []Use
	// Sessions are the BGP sessions that the section configures.
	Sessions []Session
}

// Session is one end of a BGP session.
type Session struct {
	// Path is the path within the section of the neighbor's AS number, or of its address for a
	// session within the AS.
	Path    string
	Address netip.Addr
	ASN     uint32
}

// Use is one address or interface that a section names; the other field is empty.
type Use struct {
	// Path is the key's path within the section, "peers[2].interface".
	Path      string
	Address   netip.Addr
	Interface string
}

// Descriptor describes one daemon.
type Descriptor struct {
	// Name is the daemon's verb, the key of its section, and its name in events and in tabane
	// status.
	Name string
	// Short and Long are the help of the verb; both are empty for a daemon whose verb is
	// defined elsewhere.
	Short, Long string
	// Program is the program with the daemon's verb.
	Program string
	// StatusPort is the default port of /status and /metrics on [::1]; 0 for a daemon without
	// status.
	StatusPort uint16
	// Needs are checked before the daemon starts.
	Needs []Need
	// Some are needs of some configurations only. The daemon reports what it lacks of them itself.
	Some []Need
	// Protocol is the protocol number of the daemon's kernel objects; 0 for a daemon without any.
	Protocol route.Protocol
	// Endpoints is set if the daemon also owns the MPTCP endpoints of its network namespace.
	Endpoints bool
	// Keeps are the capabilities that the daemon needs once it has started, besides those of its
	// eBPF programs and of a privileged port. It drops all others.
	Keeps []privilege.Capability
	// HandsOver is set if the daemon can be replaced by another process while it runs.
	HandsOver bool
	// Drains is set if the daemon can be taken out of service while it runs.
	Drains bool

	section    func(*Sections) Section
	status     func(*Sections) *netip.AddrPort
	with       func(*Sections, netip.AddrPort) Section
	control    func(*Sections) *string
	setControl func(*Sections, string)
	host       func(*Sections) Host
	summary    func(*Sections) string
	programs   func(*Sections) bool
	lowPort    func(*Sections) bool
	start      func(context.Context, *Sections, Options) (Machine, error)
	reload     func(Machine, *Sections) ([]string, error)
}

// typed is the part of a Descriptor that depends on the section's type C.
type typed[C any] struct {
	// field returns the field of the section in Sections.
	field func(*Sections) **C
	// status returns the section's status address; nil for a daemon without status.
	status func(*C) *netip.AddrPort
	// control returns the section's control socket; nil for a daemon without one.
	control func(*C) *string
	host    func(*C) Host
	// summary returns a short description of the section: "AS 65000, 2 egress peers".
	summary func(*C) string
	// programs reports whether the daemon keeps eBPF programs; nil if never.
	programs func(*C) bool
	// lowPort reports whether the daemon opens sockets with a privileged port while it runs; nil if
	// never, or if Keeps has the capability always.
	lowPort func(*C) bool
	// start creates the Machine without changing the kernel; nil if another verb starts the
	// daemon, or a program that gives it to StartedBy.
	start func(context.Context, C, Options) (Machine, error)
	// reload applies a new section to a running Machine and returns what changed; nil for a
	// daemon that cannot reload.
	reload func(Machine, C) ([]string, error)
}

// describe binds a Descriptor to the type of its section.
func describe[C any, P interface {
	*C
	Section
}](d Descriptor, t typed[C]) Descriptor {
	d.section = func(s *Sections) Section {
		if c := *t.field(s); c != nil {
			return P(c)
		}
		return nil
	}
	d.host = func(s *Sections) Host { return t.host(*t.field(s)) }
	d.summary = func(s *Sections) string { return t.summary(*t.field(s)) }
	if t.programs != nil {
		d.programs = func(s *Sections) bool { return t.programs(*t.field(s)) }
	}
	if t.lowPort != nil {
		d.lowPort = func(s *Sections) bool { return t.lowPort(*t.field(s)) }
	}
	if t.status != nil {
		d.status = func(s *Sections) *netip.AddrPort { return t.status(*t.field(s)) }
	}
	d.with = func(s *Sections, at netip.AddrPort) Section {
		c := **t.field(s)
		if t.status != nil {
			*t.status(&c) = at
		}
		return P(&c)
	}
	if t.control != nil {
		d.control = func(s *Sections) *string { return t.control(*t.field(s)) }
		d.setControl = func(s *Sections, path string) {
			c := **t.field(s)
			*t.control(&c) = path
			*t.field(s) = &c
		}
	}
	if t.start != nil {
		d.start = func(ctx context.Context, s *Sections, o Options) (Machine, error) {
			return t.start(ctx, **t.field(s), o)
		}
	}
	if t.reload != nil {
		d.reload = func(m Machine, s *Sections) ([]string, error) { return t.reload(m, **t.field(s)) }
	}
	return d
}

// In returns the daemon's section, or nil when there is none.
func (d Descriptor) In(s *Sections) Section { return d.section(s) }

// Kept returns the capabilities that the daemon needs once it has started. s must include the
// daemon's section.
func (d Descriptor) Kept(s *Sections) []privilege.Capability {
	kept := slices.Clone(d.Keeps)
	if d.programs != nil && d.programs(s) {
		kept = append(kept, privilege.BPF)
	}
	if d.lowPort != nil && d.lowPort(s) {
		kept = append(kept, privilege.BindPort)
	}
	return kept
}

// DefaultStatus returns the default address of the daemon's status, which is invalid for a daemon
// without status.
func (d Descriptor) DefaultStatus() netip.AddrPort {
	if d.StatusPort == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), d.StatusPort)
}

// Status returns the address of the daemon's status. s must include the daemon's section.
func (d Descriptor) Status(s *Sections) netip.AddrPort {
	if d.status != nil && d.status(s).IsValid() {
		return *d.status(s)
	}
	return d.DefaultStatus()
}

// WithStatus returns a copy of the daemon's section, which must be there, with its status at this
// address.
func (d Descriptor) WithStatus(s *Sections, at netip.AddrPort) Section { return d.with(s, at) }

// Control returns the path of the daemon's control socket, empty for a daemon without one. s must
// include the daemon's section.
func (d Descriptor) Control(s *Sections) string {
	if d.control == nil {
		return ""
	}
	return control.Path(*d.control(s), d.Name)
}

// SetControl replaces the daemon's section, which must exist, by a copy with this control socket.
// It does nothing for a daemon without one.
func (d Descriptor) SetControl(s *Sections, path string) {
	if d.setControl != nil {
		d.setControl(s, path)
	}
}

// Host is what the daemon's section, which must be there, requires of its host.
func (d Descriptor) Host(s *Sections) Host { return d.host(s) }

// Summary describes the daemon's section, which must be there, in a few words.
func (d Descriptor) Summary(s *Sections) string { return d.Name + ": " + d.summary(s) }

// Startable reports whether the daemon has a verb of its name that reads its file; the others are
// started by another verb.
func (d Descriptor) Startable() bool { return d.StatusPort != 0 }

// StartedBy returns the descriptor with the function that starts the daemon, for a program that has
// the daemon while this package does not know it.
func (d Descriptor) StartedBy(start func(context.Context, *Sections, Options) (Machine, error)) Descriptor {
	d.start = start
	return d
}

// Start makes the daemon from its section, which must be there. It has not changed the kernel when
// it returns.
func (d Descriptor) Start(ctx context.Context, s *Sections, o Options) (Machine, error) {
	return d.start(ctx, s, o)
}

// Reloads reports whether the daemon can reload.
func (d Descriptor) Reloads() bool { return d.reload != nil }

// Reload applies the daemon's section of s to a running daemon, and returns the changes, one line
// each. An error means that nothing has changed.
func (d Descriptor) Reload(m Machine, s *Sections) ([]string, error) {
	if d.section(s) == nil {
		return nil, fmt.Errorf("section %q is missing", d.Name+":")
	}
	if d.reload == nil {
		return nil, errors.New("BUG: " + d.Name + " does not reload")
	}
	return d.reload(m, s)
}

// All returns the descriptors of all daemons, in the order in which a network starts them.
func All() []Descriptor { return slices.Clone(table) }

// Named returns the descriptor of a daemon.
func Named(name string) (Descriptor, bool) {
	i := slices.IndexFunc(table, func(d Descriptor) bool { return d.Name == name })
	if i < 0 {
		return Descriptor{}, false
	}
	return table[i], true
}

// Names returns the names of all daemons, sorted.
func Names() []string {
	var names []string
	for _, d := range table {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

// Present returns the descriptors of the daemons that have a section.
func (s *Sections) Present() []Descriptor {
	return slices.DeleteFunc(All(), func(d Descriptor) bool { return d.In(s) == nil })
}

// Check returns all faults of the sections, with paths that start with the section's key.
func (s *Sections) Check() fault.List {
	var faults fault.List
	for _, d := range s.Present() {
		faults.Merge(d.Name, d.In(s).Check())
	}
	return faults
}

// Files makes the names of the files that the sections have relative to dir, that of the
// configuration file, and returns the faults of these files, which it reads.
func (s *Sections) Files(dir string) fault.List {
	var faults fault.List
	for _, d := range s.Present() {
		if f, ok := d.In(s).(interface{ Files(dir string) fault.List }); ok {
			faults.Merge(d.Name, f.Files(dir))
		}
	}
	return faults
}

// Warnings returns what is valid and has no effect in the sections, with paths as those of Check.
func (s *Sections) Warnings() fault.List {
	var warnings fault.List
	for _, d := range s.Present() {
		if w, ok := d.In(s).(interface{ Warnings() fault.List }); ok {
			warnings.Merge(d.Name, w.Warnings())
		}
	}
	return warnings
}

// Summary describes what there is, "asbr: AS 65000, 2 egress peers; edge: ...".
func (s *Sections) Summary() string {
	var parts []string
	for _, d := range s.Present() {
		parts = append(parts, d.Summary(s))
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
