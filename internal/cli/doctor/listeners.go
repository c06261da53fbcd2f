package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/mptcp"
)

// listeners checks that servers listen on all addresses, because a subflow to an EPE address is
// reset otherwise, and that all sockets of a port listen with MPTCP: the kernel gives each
// connection and each subflow to one of them. owners returns the processes that have sockets, by
// their numbers.
func listeners(list func() ([]mptcp.Listener, error), owners func([]uint32) map[uint32]string) Finding {
	f := Finding{Check: "listeners", State: OK, Meaning: "MPTCP listens on all addresses, EPE addresses included"}
	all, err := list()
	if err != nil {
		f.State, f.Meaning = Unknown, err.Error()
		return f
	}
	var single, remedies, texts []string
	var mixed []mptcp.Listener
	for _, l := range all {
		switch a := l.At.Addr(); {
		case a.IsLoopback():
		case !l.Multipath:
			if intrudes(&l, all) {
				mixed = append(mixed, l)
			}
		case !a.IsUnspecified():
			single = append(single, l.At.String())
		}
	}
	if len(mixed) > 0 {
		text, remedy := shared(mixed, owners)
		texts, remedies = append(texts, text), append(remedies, remedy)
	}
	if len(single) > 0 {
		texts = append(texts, strings.Join(single, ", ")+": subflows to EPE addresses are reset")
		remedies = append(remedies, "have the server listen on [::] (or 0.0.0.0)")
	}
	if len(texts) > 0 {
		f.State, f.Meaning, f.Remedy = Limited, strings.Join(texts, "; "), strings.Join(remedies, "; ")
	}
	return f
}

// Addresses of documentation (RFC 3849, RFC 5737) stand for all that a wildcard includes.
var (
	someIPv6 = netip.MustParseAddr("2001:db8::1")
	someIPv4 = netip.MustParseAddr("192.0.2.1")
)

// intrudes reports whether a socket that listens with TCP gets connections that another one with
// MPTCP would get.
func intrudes(l *mptcp.Listener, all []mptcp.Listener) bool {
	for _, address := range []netip.Addr{l.At.Addr(), someIPv6, someIPv4} {
		at := netip.AddrPortFrom(address, l.At.Port())
		if address.IsUnspecified() || !l.Accepts(at) {
			continue
		}
		answer := mptcp.AnswerTo(all, at)
		if (answer == mptcp.JoinMixed || answer == mptcp.JoinOnlyTCP) && slices.ContainsFunc(all, func(l mptcp.Listener) bool { return l.Multipath && l.Accepts(at) }) {
			return true
		}
	}
	return false
}

// shared describes sockets that listen with TCP beside others with MPTCP.
func shared(mixed []mptcp.Listener, owners func([]uint32) map[uint32]string) (text, remedy string) {
	var numbers []uint32
	for _, l := range mixed {
		numbers = append(numbers, l.Inode)
	}
	names := owners(numbers)
	var all, restart []string
	for _, l := range mixed {
		name, known := names[l.Inode]
		if !known {
			name = "a process of port " + strconv.Itoa(int(l.At.Port()))
		}
		all = append(all, fmt.Sprintf("%s listens on %v with TCP", name, l.At))
		if !slices.Contains(restart, name) {
			restart = append(restart, name)
		}
	}
	text = strings.Join(all, ", ") + " beside a listener with MPTCP: connections and subflows that the kernel gives to it have no MPTCP, or are reset"
	return text, "restart with MPTCP (tabane mptcpify), or stop: " + strings.Join(restart, ", ")
}

func listening() ([]mptcp.Listener, error) {
	d, err := mptcp.DialDiag()
	if err != nil {
		return nil, err
	}
	all, err := d.Listeners()
	return all, errors.Join(err, d.Close())
}

// processes returns the names and process IDs of those that have sockets, by their numbers. Those
// of other users are known to root alone.
func processes(sockets []uint32) map[uint32]string {
	found := map[uint32]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the error is of a bad pattern
	for _, file := range files {
		// One that has ended, or that this process may not read, is left out.
		target, err := os.Readlink(file)
		text, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		number, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
		if err != nil || !slices.Contains(sockets, uint32(number)) {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		name, err := os.ReadFile(process + "/comm")
		if err != nil {
			continue
		}
		text = fmt.Sprintf("%s (pid %s)", strings.TrimSuffix(string(name), "\n"), filepath.Base(process))
		if before := found[uint32(number)]; before != "" {
			// Processes that a server has forked, such as the workers of nginx, share a socket.
			text = before + ", " + text
		}
		found[uint32(number)] = text
	}
	return found
}
