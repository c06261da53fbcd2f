// Package doctor checks which features of this host tabane can use. It probes them by using them,
// where that leaves nothing behind.
//
// It changes nothing: probes that create objects run in an unnamed network namespace, which is
// removed afterwards. It repairs nothing either; it reports the remedy.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
	program "github.com/tabane/tabane/internal/mptcp/ccbpf"
	"github.com/tabane/tabane/internal/mptcp/congestion"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
	"github.com/tabane/tabane/internal/proxy"
	"github.com/tabane/tabane/internal/proxy/relay"
	"github.com/tabane/tabane/internal/role"
)

// State is the result of a check.
type State string

// The states of a check.
const (
	OK      State = "ok"
	Missing State = "missing"
	// Limited works in part, or not as well as it could.
	Limited State = "limited"
	// Unknown could not be checked, usually for lack of privilege.
	Unknown State = "unknown"
)

// Finding is the finding of one check.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	// Needed is whether a daemon of this host requires it; on a host without daemons, whether
	// content delivery over every egress path, or its lab, does.
	Needed bool `json:"needed"`
	// Users are the verbs that depend on it, nil for all daemons. Unused is set on a host with
	// daemons that are none of these.
	Users  []string `json:"users,omitempty"`
	Unused bool     `json:"unused,omitempty"`
	// Optional is whether everything else works without it.
	Optional bool `json:"optional,omitempty"`
	// Meaning is what was found and what it is for; Remedy is what to do, if anything.
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy,omitempty"`
}

// check sets the state from the result of a probe: the feature is missing, or could not be probed.
func (f *Finding) check(err error) {
	var missing *feature.Error
	switch {
	case errors.As(err, &missing):
		f.State, f.Meaning, f.Remedy = Missing, missing.Cause(), missing.Remedy
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	}
}

// unknown sets what is reported of a check that failed.
func (f *Finding) unknown(err error) {
	f.State, f.Meaning = Unknown, err.Error()
	if errors.Is(err, fs.ErrPermission) {
		f.Remedy = "run as root to check"
	}
}

// The verbs that depend on features, besides the names of daemons.
const (
	// OpenGateway is a gateway whose packets are sent or relayed by programs in the kernel.
	OpenGateway = "gateway with programs"
	lab         = "lab"
	mptcpVerb   = "mptcpify"
	controls    = "cc"
)

// Examine runs all checks. daemons are those of this host; what they need comes first, or without
// any daemon what content delivery needs. It takes about a tenth of a second.
func Examine(daemons []string) []Finding {
	var list []Finding
	of := func(users []string, found ...Finding) {
		for _, f := range found {
			f.Users = users
			list = append(list, f)
		}
	}
	of(nil, capabilities())
	of([]string{role.ASBR, role.Edge, lab}, kernel())
	of([]string{role.ASBR, role.Edge, role.Reflector, role.Router, lab}, ipv6())
	of([]string{role.Edge, role.Proxy, mptcpVerb}, multipath(), multipathLimits(mptcp.CurrentManager, currentLimits))
	of(nil, networkd(root(), ownAddresses))
	list = append(list, trials()...)
	of([]string{role.Edge, role.Proxy, controls}, congestionControls(), coupledControls(), listenersControl(congestion.Host{}))
	of([]string{role.ASBR, role.Router}, OfCondition(condition.Forwarding(bgp.IPv6)))
	of([]string{role.ASBR, role.Router, role.Gateway}, OfCondition(condition.Forwarding(bgp.IPv4)))
	of([]string{role.ASBR, role.Edge, role.Gateway, role.Proxy, role.Router}, OfCondition(condition.Tracked()))
	of([]string{role.ASBR, role.Gateway}, reversePath())
	of([]string{role.ASBR}, ipv4Routes())
	of([]string{role.Edge}, listeners(listening, processes), signals(mptcp.Supported, mptcp.ReadSignals, mptcp.SchedulersByBPF), reports())
	of([]string{role.Edge, role.Proxy}, tokens(mptcp.ReadCounters, memory), standstills(mptcp.ReadCounters), stripped(mptcp.ReadCounters))
	of([]string{mptcpVerb}, mptcpified(mptcp.Supported, mptcpify.Supported))
	of([]string{lab}, programs()...)
	of([]string{role.ASBR, role.Edge, OpenGateway, controls}, typeFormat())
	of([]string{OpenGateway}, tcx(), openRelay())
	of([]string{role.Gateway}, gatewayOffloads()...)
	of([]string{role.Gateway}, openPlane(gatewayPins), socketBuffers(netns.ReadSysctl, Privileged()), clock(kernelClock), tunnelMTU(net.Interfaces))
	of([]string{role.Proxy}, descriptors(relay.DescriptorLimit), bounded(relay.Congestion))
	list = append(list, startable(daemons)...)
	return arrange(list, daemons)
}

// arrange marks what no daemon of this host uses, and puts it behind what is used; of that, the
// needed features come first.
func arrange(list []Finding, daemons []string) []Finding {
	for i := range list {
		f := &list[i]
		if len(daemons) > 0 && f.Users != nil && !slices.ContainsFunc(f.Users, func(u string) bool { return slices.Contains(daemons, u) }) {
			f.Unused, f.Needed = true, false
		}
	}
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(order(a), order(b)) })
	return list
}

func order(f Finding) int {
	switch {
	case f.Needed:
		return 0
	case f.Unused:
		return 2
	}
	return 1
}

// ErrPrivilege is wrapped by the errors of Privileged and PrivilegedForLab.
var ErrPrivilege = errors.New("missing privilege")

// Privileged returns nil if this process may change the network, otherwise why not.
func Privileged() error { return require(privilege.NetAdmin) }

// PrivilegedForLab returns nil if this process may create network namespaces, otherwise why not.
func PrivilegedForLab() error { return require(privilege.NetAdmin, privilege.SysAdmin) }

func require(want ...privilege.Capability) error {
	lacking, err := privilege.Lacking(want...)
	if err != nil {
		return err
	}
	if len(lacking) > 0 {
		return fmt.Errorf("%w: user %d lacks %s", ErrPrivilege, os.Geteuid(), names(lacking))
	}
	return nil
}

func names(capabilities []privilege.Capability) string {
	var all []string
	for _, c := range capabilities {
		all = append(all, c.String())
	}
	return strings.Join(all, ", ")
}

func capabilities() Finding {
	f := Finding{Check: "privilege", Needed: true, State: OK, Meaning: "daemons and labs may change the network"}
	lacking, err := privilege.Lacking(privilege.NetAdmin, privilege.SysAdmin, privilege.BindPort)
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case slices.Contains(lacking, privilege.NetAdmin):
		f.State, f.Meaning = Missing, "lacks "+names(lacking)+": neither daemons nor labs can run"
		f.Remedy = "run as root"
	case len(lacking) > 0:
		f.State, f.Meaning = Limited, "lacks "+names(lacking)+": daemons may run, labs cannot"
		f.Remedy = "run as root for labs"
	}
	return f
}

// release returns the running kernel's version.
func release() (text string, major, minor int, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", 0, 0, fmt.Errorf("read kernel version: %w", err)
	}
	text = unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		return text, 0, 0, fmt.Errorf("read kernel version %q: %w", text, err)
	}
	return text, major, minor, nil
}

func kernel() Finding {
	f := Finding{Check: "kernel", Needed: true, State: OK}
	text, major, minor, err := release()
	f.Meaning = "Linux " + text
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case major < 6:
		// H.Encaps.Red is the newest required feature (6.0).
		f.State, f.Meaning, f.Remedy = Missing, f.Meaning+fmt.Sprintf(": %d.%d has no encap.red", major, minor), "use Linux 6.1 or newer (Debian 12, Ubuntu 24.04)"
	}
	return f
}

func ipv6() Finding {
	f := OfCondition(condition.IPv6())
	f.Needed = true
	if _, err := os.Stat("/proc/sys/net/ipv6"); f.State == Limited && err != nil {
		f.State = Missing
	}
	return f
}

func multipath() Finding {
	f := Finding{Check: "MPTCP", Needed: true, State: OK, Meaning: "a connection uses several paths"}
	if err := mptcp.Supported(); err != nil {
		f.check(err)
		return f
	}
	if managers, err := netns.ReadSysctl("net.mptcp.available_path_managers"); err == nil {
		f.Meaning += "; path managers: " + managers
	} else if kind, err := netns.ReadSysctl("net.mptcp.pm_type"); err == nil {
		f.Meaning += "; path manager type " + kind
	}
	return f
}

func currentLimits() (mptcp.Limits, error) {
	c, err := mptcp.Dial()
	if err != nil {
		return mptcp.Limits{}, err
	}
	l, err := c.Limits()
	return l, errors.Join(err, c.Close())
}

// multipathLimits checks the limits of the kernel's path manager for clients: Linux' defaults are
// subflows 2 and add_addr_accepted 0, with which a connection has one subflow whatever a server
// advertises (ip-mptcp(8)).
func multipathLimits(manager func() (mptcp.Manager, error), limits func() (mptcp.Limits, error)) Finding {
	f := Finding{Check: "MPTCP limits", State: OK}
	m, err := manager()
	var l mptcp.Limits
	if err == nil {
		l, err = limits()
	}
	f.Meaning = fmt.Sprintf("subflows %d, add_addr_accepted %d: clients on this host open subflows to as many advertised addresses", l.Subflows, l.AddAddrAccepted)
	switch {
	case err != nil:
		f.check(err)
	case m != mptcp.KernelManager:
		f.Meaning = fmt.Sprintf("not used: the path manager is %q", m)
	case l.AddAddrAccepted == 0 || l.Subflows == 0:
		f.State = Limited
		f.Meaning = fmt.Sprintf("subflows %d, add_addr_accepted %d: clients on this host open no subflows to addresses that a server advertises", l.Subflows, l.AddAddrAccepted)
		f.Remedy = "on clients: ip mptcp limits set subflows 8 add_addr_accepted 8"
	}
	return f
}

// tokens checks whether connections became TCP because the kernel has no token for them, which no
// log reports.
func tokens(counters func() (mptcp.Counters, error), memory func() (uint64, error)) Finding {
	f := Finding{Check: "MPTCP tokens", State: OK}
	c, err := counters()
	size, other := memory()
	places := mptcp.TokenPlaces(size)
	f.Meaning = fmt.Sprintf("the kernel has room for about %d MPTCP connections; none has been refused in this network namespace", places)
	switch err = errors.Join(err, other); {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case c.TableFull > 0:
		f.State = Limited
		f.Meaning = fmt.Sprintf("%d connections became TCP since boot, because the kernel has room for about %d MPTCP connections only", c.TableFull, places)
		f.Remedy = "close idle connections sooner, use more servers, or add memory: the kernel's table grows with it"
	}
	return f
}

// mptcpified checks whether programs that do not ask for MPTCP can have it. multipath returns an
// error where there is no MPTCP.
func mptcpified(multipath func() error, supported func(mptcpify.How) error) Finding {
	f := Finding{Check: "mptcpify", State: OK, Optional: true, Meaning: "tabane mptcpify gives MPTCP to programs that do not ask for it, by seccomp"}
	err := multipath()
	if err == nil {
		err = supported(mptcpify.Seccomp)
	}
	f.check(err)
	if f.State == Missing && supported(mptcpify.Preload) == nil && multipath() == nil {
		f.State = Limited
		f.Meaning = "tabane mptcpify gives MPTCP to dynamically linked programs only, by LD_PRELOAD: " + f.Meaning
	}
	return f
}

// standstills checks whether this host dropped data that it had acknowledged on a subflow, after
// which downloads over MPTCP may stand still for seconds.
func standstills(counters func() (mptcp.Counters, error)) Finding {
	f := Finding{Check: "MPTCP window", State: OK, Meaning: "no data was received beyond the window of an MPTCP connection (NoDSSInWindow)"}
	switch c, err := counters(); {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case c.BeyondWindow > 0:
		f.State = Limited
		f.Meaning = fmt.Sprintf("%d times since boot data beyond the window of an MPTCP connection was dropped (NoDSSInWindow): its sender reinjects it slowly, and the download may stand still for seconds", c.BeyondWindow)
		f.Remedy = `have the receive buffers of this host, the receiver, begin with more than what the paths' queues hold: sysctl -w net.ipv4.tcp_rmem="4096 1048576 33554432"`
	case c.Reinjected > 0:
		f.Meaning += fmt.Sprintf("; as a sender it reinjected %d fragments by a timer since boot (MPTCPRetrans), of which connections that stand still need many: standstills in tabane status edge", c.Reinjected)
	}
	return f
}

// stripped checks whether a router removed MPTCP's options from connections that carried data to
// this host, whose programs may have got bytes twice.
func stripped(counters func() (mptcp.Counters, error)) Finding {
	f := Finding{Check: "MPTCP options", State: OK, Meaning: "no connection lost MPTCP's options after it had carried data (DssFallback)"}
	switch c, err := counters(); {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case c.LostOptions > 0:
		f.State = Limited
		f.Meaning = fmt.Sprintf("%d connections lost MPTCP's options since boot after they had carried data (DssFallback): programs on this host may have got bytes twice, but for tabane proxy, which resets such connections", c.LostOptions)
		f.Remedy = "find the router that removes MPTCP's options from some packets only, as after a change of the route, and have it pass all of them or none"
	}
	return f
}

// signals checks what the kernel reports of MPTCP connections, by which edge chooses paths and ends
// standstills, and whether it accepts schedulers.
func signals(multipath func() error, read func() (mptcp.Signals, error), schedulers func() (bool, error)) Finding {
	f := Finding{Check: "MPTCP signals", State: OK}
	f.check(multipath())
	if f.State != OK {
		return f
	}
	s, err := read()
	if err == nil {
		err = errors.Join(s.Choosing(), s.Standstills())
	}
	if f.check(err); f.State == Missing {
		f.State, f.Meaning = Limited, strings.ReplaceAll(err.Error(), "\n", "; ")
		f.Remedy = "use Linux 6.5 or newer"
		return f
	} else if f.State != OK {
		return f
	}
	f.Meaning = "edge can choose the paths of connections (use: overflow, policies) and end connections that stand still"
	switch has, err := schedulers(); {
	case err != nil:
		f.Meaning += "; whether the kernel accepts eBPF schedulers for MPTCP is not known: " + err.Error()
	case has:
		f.Meaning += "; the kernel accepts eBPF schedulers for MPTCP, which edge does not use: policies act by backup flags"
	default:
		f.Meaning += "; policies act by backup flags, as the kernel accepts no eBPF schedulers for MPTCP"
	}
	return f
}

// memory returns the size of the memory in bytes.
func memory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	return uint64(info.Totalram) * uint64(info.Unit), nil
}

func congestionControls() Finding {
	f := Finding{Check: "congestion control", Needed: true, State: OK}
	available, err := netns.ReadSysctl("net.ipv4.tcp_available_congestion_control")
	if err != nil {
		f.State, f.Meaning = Unknown, err.Error()
		return f
	}
	f.Meaning = "available: " + available
	// Absent outside the initial namespace.
	if allowed, err := netns.ReadSysctl("net.ipv4.tcp_allowed_congestion_control"); err == nil {
		f.Meaning += "; allowed to all: " + allowed
	}
	if !slices.Contains(strings.Fields(available), "cubic") {
		f.State, f.Remedy = Missing, "modprobe tcp_cubic"
	}
	return f
}

// coupledControls checks what tabane cc needs.
func coupledControls() Finding {
	f := Finding{Check: "coupled congestion control", State: OK, Optional: true, Meaning: "tabane cc loads LIA, OLIA, BALIA and others (eBPF)"}
	err := program.Supported()
	if err == nil {
		err = program.Mounted(program.DefaultDir)
	}
	f.check(err)
	return f
}

// listenersControl checks that listening sockets have the congestion control of this network
// namespace: subflows that join a connection get the listener's, whatever the sysctl is.
func listenersControl(h congestion.Host) Finding {
	f := Finding{Check: "congestion control of listeners", State: OK, Meaning: "subflows get the control of " + congestion.Sysctl}
	found, err := h.Listeners()
	var others []string
	for _, l := range found {
		if l.Control == proxy.Bounded && l.Sysctl == program.Cubic {
			continue // a proxy has chosen it
		}
		others = append(others, fmt.Sprintf("%s has %s, not %s", l.Address, l.Control, l.Sysctl))
	}
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case len(others) > 0:
		f.State, f.Remedy = Limited, "restart the server; reloading it may keep its sockets"
		f.Meaning = strings.Join(others, ", ") + ": so have subflows that join its connections"
	}
	return f
}

// OfCondition examines a condition of daemons.
func OfCondition(c condition.Condition) Finding {
	f := Finding{Check: c.Name, State: OK, Meaning: c.Good}
	problems, err := c.Examine()
	if err != nil {
		f.unknown(err)
		return f
	}
	var texts, remedies []string
	for _, p := range problems {
		texts, remedies = append(texts, p.Text), append(remedies, p.Remedy)
	}
	if len(problems) > 0 {
		f.State, f.Meaning, f.Remedy = Limited, strings.Join(texts, "; "), strings.Join(remedies, "; ")
	}
	return f
}

// reversePath checks rp_filter of all interfaces. Which of them are exempted from it or from
// forwarding is for daemons to judge, which know what arrives at them.
func reversePath() Finding {
	list, err := net.Interfaces()
	var links []string
	for _, l := range list {
		if l.Flags&net.FlagLoopback == 0 {
			links = append(links, l.Name)
		}
	}
	f := OfCondition(condition.ReversePath(links...))
	if err != nil {
		f.unknown(err)
	}
	return f
}

// ipv4Routes checks what egress peers with IPv4 routes need beside SRv6.
func ipv4Routes() Finding {
	f := Finding{Check: "IPv4 End.DT4", State: OK, Optional: true, Meaning: "a border router forwards IPv4 by the table of an egress peer"}
	f.check(route.SupportsMark())
	return f
}

func programs() []Finding {
	var list []Finding
	for _, p := range []struct{ name, pkg, use string }{
		{"curl", "curl", "fetches from a lab's server"},
		{"iperf3", "iperf3", "measures in a lab"},
		{"mptcpize", "mptcpize", "runs a program over MPTCP"},
		{"tcpdump", "tcpdump", "shows packets"},
		{"vtysh", "frr", "FRR: foreign routers in a lab"},
	} {
		f := Finding{Check: p.name, State: OK, Optional: true, Meaning: p.use}
		if _, err := exec.LookPath(p.name); err != nil {
			f.State, f.Remedy = Missing, "apt-get install "+p.pkg
		}
		list = append(list, f)
	}
	return list
}

func typeFormat() Finding {
	f := Finding{Check: "BTF", State: OK, Optional: true, Meaning: "eBPF programs are relocated for this kernel (CO-RE)"}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		f.State, f.Remedy = Missing, "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
	}
	return f
}

// reports checks how edge detects stalled subflows.
func reports() Finding {
	f := Finding{Check: "stalled subflows", State: OK, Meaning: "the kernel reports them to edge (eBPF), so idle connections cost no CPU time"}
	w, err := pathmanager.NewReports()
	if err == nil {
		err = w.Close()
	}
	var missing *feature.Error
	switch {
	case errors.As(err, &missing):
		f.State, f.Meaning, f.Remedy = Limited, "edge samples all connections, up to 0.2 of a core: "+missing.Cause(), missing.Remedy
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	}
	return f
}

func tcx() Finding {
	f := Finding{Check: "tcx", State: OK, Optional: true, Meaning: "eBPF programs attach to interfaces side by side"}
	_, major, minor, err := release()
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	case major < 6 || major == 6 && minor < 6:
		f.State, f.Remedy = Missing, "use Linux 6.6 or newer, not "+strconv.Itoa(major)+"."+strconv.Itoa(minor)
		f.Meaning = "programs are attached by cls_bpf: those of a gateway are not pinned, so that packets go sealed from its restart until its sessions are up"
	}
	return f
}
