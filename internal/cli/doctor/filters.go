package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

// someClients are addresses of clients, of documentation and of the Internet.
var someClients = []netip.Addr{netip.MustParseAddr("2001:db8:c::1"), netip.MustParseAddr("2a00::1")}

// EgressFilters checks that no program that filters what a control group sends, as that of
// IPAddressDeny= of systemd, drops packets to SIDs that are sent from an address, though it accepts
// packets to clients: it filters what is encapsulated by the SID.
func EgressFilters(from netip.Addr, sids []netip.Addr) Finding {
	root, err := bpf.Groups()
	if err != nil {
		f := Finding{Check: filtersCheck}
		f.check(err)
		return f
	}
	defer root.Close()
	return egressFilters(bpf.GroupPath(root), from, sids)
}

const filtersCheck = "filters of control groups"

func egressFilters(dir string, from netip.Addr, sids []netip.Addr) Finding {
	f := Finding{Check: filtersCheck, State: OK, Meaning: "no control group drops packets to SIDs"}
	list, err := bpf.EgressFilters(dir)
	if err != nil {
		f.unknown(err)
		return f
	}
	var packets [][]byte
	for _, to := range someClients {
		packets = append(packets, packetTo(from, to, 6)) // TCP
	}
	for _, sid := range sids {
		packets = append(packets, packetTo(from, sid, 41)) // IPv6
	}
	var groups []string
	dropped := map[netip.Addr]bool{}
	for _, filter := range list {
		accepts, err := filter.Accepts(packets...)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			f.unknown(err)
			return f
		}
		clients, toSIDs := accepts[:len(someClients)], accepts[len(someClients):]
		if !slices.Contains(clients, true) || !slices.Contains(toSIDs, false) {
			continue
		}
		groups = append(groups, filter.Group)
		for i, sid := range sids {
			if !toSIDs[i] {
				dropped[sid] = true
			}
		}
	}
	if len(groups) == 0 {
		return f
	}
	var to []string
	for _, sid := range sids {
		if dropped[sid] {
			to = append(to, sid.String())
		}
	}
	f.State = Limited
	f.Meaning = fmt.Sprintf("%s: packets to SIDs (%s) are dropped, and its processes reach no client through these egress peers", strings.Join(groups, ", "), strings.Join(to, ", "))
	f.Remedy = "add the locators of border routers to IPAddressAllow= of the unit, or have the filter accept them"
	return f
}

// packetTo is a frame with an IPv6 packet whose payload is of a protocol, and zero.
func packetTo(from, to netip.Addr, protocol byte) []byte {
	const payload = 60
	b := binary.BigEndian.AppendUint16(make([]byte, 12), 0x86dd)
	b = append(b, 6<<4, 0, 0, 0, 0, payload, protocol, 64)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	return append(b, make([]byte, payload)...)
}
