package openplane

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/offload"
)

// Mark is that of packets from open peers, in MarkBits.
const Mark, MarkBits = program.Mark, program.MarkBits

// SuperPackets is that the LAN's interfaces merge no packets that the program would send whole over
// a slow path, which keeps it busy for long. rate is that of the slowest path to an open peer. With
// the pair of interfaces that segments them, they may.
func SuperPackets(lan []string, path string, rate unit.Bandwidth) condition.Condition {
	return superPackets(lan, path, rate, func() bool {
		_, err := net.InterfaceByName(program.Segmenter)
		return err == nil
	}, offload.Merging)
}

func superPackets(lan []string, path string, rate unit.Bandwidth, segmented func() bool, merging func([]string) ([]string, error)) condition.Condition {
	busy := rate.TimeFor(dataplane.SuperPacket)
	return condition.Condition{
		Name: "super-packets", Good: "none keeps a slow path of peers that are not sealed busy for long",
		Examine: func() ([]health.Problem, error) {
			if busy <= dataplane.SuperPacketMost || segmented() {
				return nil, nil
			}
			found, err := merging(lan)
			if err != nil || len(found) == 0 {
				return nil, err
			}
			return []health.Problem{{
				Text: fmt.Sprintf("%s merges packets (GRO): to peers that are not sealed they are sent as a whole, and path %s of %v is busy with 64 kB for %v",
					strings.Join(found, ", "), path, rate, busy.Round(time.Millisecond)),
				Remedy: "ethtool -K " + strings.Join(found, " gro off; ethtool -K ") + " gro off",
			}}, nil
		},
	}
}

// LAN is that packets to open peers are taken from all interfaces that lead to hosts. unlisted are
// those that have addresses of the LAN and are none of lan. A bridge or bond is no problem if all
// its ports are.
func LAN(lan, unlisted []string) condition.Condition { return ofLAN(lan, unlisted, netlink.LinkList) }

func ofLAN(lan, unlisted []string, links func() ([]netlink.Link, error)) condition.Condition {
	return condition.Condition{
		Name: "LAN", Good: "packets to peers that are not sealed are taken from all interfaces with addresses of the LAN",
		Examine: func() ([]health.Problem, error) {
			if len(unlisted) == 0 {
				return nil, nil
			}
			all, err := links()
			if err != nil {
				return nil, fmt.Errorf("list interfaces: %w", err)
			}
			var missed []string
			for _, name := range unlisted {
				if !portsListed(all, name, lan) {
					missed = append(missed, name)
				}
			}
			if len(missed) == 0 {
				return nil, nil
			}
			names := strings.Join(missed, ", ")
			return []health.Problem{{
				Text:   names + " has addresses of the LAN and is not in lan.interfaces: packets of its hosts may all be sealed",
				Remedy: "add to lan.interfaces, in place of its trunk or port: " + names,
			}}, nil
		},
	}
}

// portsListed reports whether an interface has ports, and all are in a list.
func portsListed(all []netlink.Link, name string, list []string) bool {
	i := slices.IndexFunc(all, func(l netlink.Link) bool { return l.Attrs().Name == name })
	if i < 0 {
		return false
	}
	ports := 0
	for _, l := range all {
		if l.Attrs().MasterIndex == all[i].Attrs().Index {
			if ports++; !slices.Contains(list, l.Attrs().Name) {
				return false
			}
		}
	}
	return ports > 0
}

// Firewall is that no chain of nftables or iptables may drop packets of open peers: those are of
// half a connection, since packets to peers bypass nftables, and arrive from the lines. Neither may
// one replace the mark that they are accepted by.
func Firewall(lines []string) condition.Condition { return firewall(lines, nft.Untracked) }

func firewall(lines []string, untracked func(nft.Packets) ([]nft.Chain, error)) condition.Condition {
	return condition.Condition{
		Name: "firewall of open peers", Good: "no chain of nftables or iptables drops packets of peers that are not sealed by the state of their connection",
		Examine: func() ([]health.Problem, error) {
			list, err := untracked(nft.Packets{Mark: Mark, Bits: MarkBits, Lines: lines})
			if len(list) == 0 {
				return nil, err
			}
			var names, remedy []string
			for _, c := range list {
				names = append(names, c.String())
				remedy = append(remedy, c.AcceptMark(Mark, MarkBits))
			}
			return []health.Problem{{
				Text: strings.Join(names, ", ") +
					" may drop packets of peers that are not sealed, or replace their mark: they arrive from the lines, and packets to the peers bypass connection tracking",
				Remedy: strings.Join(remedy, "; "),
			}}, err
		},
	}
}

// Marks is that no rules of other programs route packets with these marks, because a part of them
// is that of others.
func Marks(marks ...uint32) condition.Condition {
	return condition.Marks(condition.MarkedPackets{
		Of: "packets of the gateway", Marks: marks, Bits: MarkBits, Remedy: "use marks above the lower 16 bits, such as 0x10000/0x10000",
	})
}

// TrafficControl is that no programs and filters of others are on the wrong side of the gateway's:
// on the LAN, packets to open peers leave at ingress, and on the lines those from them have to pass
// the gateway's programs. It needs CAP_SYS_ADMIN.
func TrafficControl(lan, lines []string) condition.Condition {
	return trafficControl(lan, lines, bpf.AllAttached)
}

func trafficControl(lan, lines []string, attached func(link string) (ingress, egress []bpf.Attached, err error)) condition.Condition {
	return condition.Condition{
		Name: "tc programs", Good: "no programs and filters of others are in the way of peers that are not sealed",
		Examine: func() (problems []health.Problem, err error) {
			for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(lan, lines)))) {
				ingress, _, err := attached(name)
				if errors.Is(err, fs.ErrNotExist) {
					continue // the daemon reports it
				}
				if err != nil {
					return nil, err
				}
				problems = append(problems, misplaced(name, slices.Contains(lan, name), ingress)...)
			}
			return problems, nil
		},
	}
}

// misplaced returns the problems of what runs at ingress of an interface.
func misplaced(name string, isLAN bool, ingress []bpf.Attached) (problems []health.Problem) {
	own := -1 // the last one of the gateway
	for i, a := range ingress {
		if a.Own() {
			own = i
		}
	}
	for i, a := range ingress {
		what := fmt.Sprintf("%v at ingress of %s", a, name)
		switch {
		case a.Own(), own < 0, i > own && !isLAN:
		case i > own:
			problems = append(problems, health.Problem{
				Text:   what + " does not see packets to peers that are not sealed",
				Remedy: fmt.Sprintf("to drop or police these, attach a tcx program to %s before the gateway's", name),
			})
		case isLAN:
			problems = append(problems, health.Problem{
				Text:   what + " is before the gateway's program: packets that it accepts are sealed",
				Remedy: fmt.Sprintf("have %v return TCX_NEXT instead of TCX_PASS", a),
			})
		default:
			problems = append(problems, health.Problem{
				Text:   what + " is before the gateway's programs: packets of peers that it accepts do not arrive, or without the mark",
				Remedy: fmt.Sprintf("restart the gateway, or have %v return TCX_NEXT instead of TCX_PASS", a),
			})
		}
	}
	return problems
}

// KilledReversePath is that the lines accept packets of open peers while the gateway is killed:
// then the kernel has no route to their sources, which a loose filter wants, too. A running gateway
// needs less.
func KilledReversePath(lines []string) condition.Condition {
	return killedReversePath(lines, netns.ReadSysctl)
}

func killedReversePath(lines []string, sysctl func(string) (string, error)) condition.Condition {
	return condition.Condition{
		Name: "rp_filter while killed", Good: "packets of peers that are not sealed arrive also while the gateway is killed",
		Examine: func() ([]health.Problem, error) {
			const all = "all"
			keys := map[string]bool{}
			var filtering []string
			for _, line := range lines {
				filters := false
				for _, name := range []string{all, line} {
					v, err := sysctl("net/ipv4/conf/" + name + "/rp_filter")
					switch {
					case errors.Is(err, fs.ErrNotExist):
					case err != nil:
						return nil, err
					case v != "0":
						filters, keys[name] = true, true
					}
				}
				if filters {
					filtering = append(filtering, line)
				}
			}
			if len(filtering) == 0 {
				return nil, nil
			}
			remedy := "sysctl -w"
			for _, name := range slices.Sorted(maps.Keys(keys)) {
				remedy += " net/ipv4/conf/" + name + "/rp_filter=0"
			}
			return []health.Problem{{
				Text:   "on " + strings.Join(filtering, ", ") + " IPv4 packets of peers that are not sealed are dropped while the gateway is killed",
				Remedy: remedy,
			}}, nil
		},
	}
}

// Conditions returns what the plane needs of the host now, in the network namespace of its calls.
// It restores its programs and its pair of interfaces.
func (p *Plane) Conditions() []condition.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !slices.ContainsFunc(p.state.Peers, func(c dataplane.Peer) bool { return c.Mode.Open() }) {
		return nil
	}
	var lines []string
	for _, c := range p.state.Paths {
		lines = append(lines, c.Interface)
	}
	list := []condition.Condition{
		Marks(Mark), Firewall(lines),
		{
			Name: "programs of open peers", Good: "the gateway's programs are where packets of open peers pass",
			Examine: p.examinePrograms, Restore: p.restorePrograms,
		},
		{
			Name: "segmentation of super-packets", Good: "the gateway's pair of interfaces is as it has been set",
			Examine: p.examinePair, Restore: p.restorePair,
		},
	}
	path, slowest := "", unit.Bandwidth(0)
	for _, r := range p.peers {
		for i := range r.paths {
			if rate := unit.Bandwidth(r.paths[i].Rate); rate > 0 && (slowest == 0 || rate < slowest) {
				path, slowest = r.paths[i].Name, rate
			}
		}
	}
	if slowest > 0 {
		list = append(list, SuperPackets(p.state.LAN.Interfaces, path, slowest))
	}
	return list
}

// examinePrograms returns the problems of programs that are detached, or on a line behind one of
// another program.
func (p *Plane) examinePrograms() (problems []health.Problem, err error) {
	sealed := p.sealed.Status()
	p.mu.Lock()
	defer p.mu.Unlock()
	bypassed := p.countBypassed(&sealed)
	behind := false
	for _, name := range p.linksAttached() {
		kinds := p.attachments(name)
		placed, err := bpf.PlaceOf(kinds...)
		if err != nil {
			return nil, fmt.Errorf("examine programs on interface %q: %w", name, err)
		}
		switch _, isLAN := p.attached[at{link: name}]; {
		case placed == bpf.Detached:
			problems = append(problems, health.Problem{
				Text:   fmt.Sprintf("a program of the gateway on interface %q was detached: packets of peers that are not sealed pass it", name),
				Remedy: "restart the gateway",
			})
		case placed == bpf.Behind && !isLAN:
			problems = append(problems, health.Problem{
				Text:   fmt.Sprintf("another tcx program on interface %q is before the gateway's: packets of peers that it accepts do not arrive, or without the mark", name),
				Remedy: "have it return TCX_NEXT instead of TCX_PASS, or detach it",
			})
		case placed == bpf.Behind:
			// By design, since others may police packets of hosts there.
			behind = true
			if p.bypassed = p.bypassed || bypassed; p.bypassed {
				problems = append(problems, health.Problem{
					Text:   fmt.Sprintf("another tcx program on interface %q is before the gateway's, and accepts packets to peers that are not sealed: they are sealed", name),
					Remedy: "have it return TCX_NEXT instead of TCX_PASS, or detach it",
				})
			}
		}
	}
	p.bypassed = p.bypassed && behind
	return problems, nil
}

// countBypassed reports whether the sealed plane has carried more packets to open peers since the
// call before than the program has left to it. The mutex is locked.
func (p *Plane) countBypassed(s *dataplane.Status) bool {
	var now sealedCount
	for i := range s.Peers {
		if r := p.peers[s.Peers[i].Name]; r != nil {
			for _, rule := range s.Peers[i].Policies {
				now.carried += rule.Sent.Packets
			}
		}
	}
	left, err := p.program.Left()
	if err != nil {
		return false
	}
	for _, n := range left {
		now.left += n
	}
	before := p.sealedBefore
	p.sealedBefore = now
	return now.carried-before.carried > now.left-before.left && now.carried > before.carried && now.left >= before.left
}

// sealedCount counts packets to open peers that the sealed plane has carried, and that the program
// has left to it.
type sealedCount struct{ carried, left uint64 }

// linksAttached returns the interfaces with programs. The mutex is locked.
func (p *Plane) linksAttached() (names []string) {
	for place, a := range p.attached {
		if a.Attachment != nil && !slices.Contains(names, place.link) {
			names = append(names, place.link)
		}
	}
	slices.Sort(names)
	return names
}

// attachments returns those of an interface. The mutex is locked.
func (p *Plane) attachments(name string) (list []bpf.Attachment) {
	for k := kindSplit; k <= kindCount; k++ {
		if a := p.attached[at{name, k}]; a != nil && a.Attachment != nil {
			list = append(list, a.Attachment)
		}
	}
	return list
}

// restorePrograms attaches the programs again of interfaces where one is not in its place.
func (p *Plane) restorePrograms() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.linksAttached() {
		_, isLAN := p.attached[at{link: name}]
		if placed, err := bpf.PlaceOf(p.attachments(name)...); err != nil || placed == bpf.Placed || placed == bpf.Behind && isLAN {
			continue
		}
		for place, a := range p.attached {
			if place.link == name {
				p.detach(name, a)
				a.Attachment, a.index = nil, 0
			}
		}
	}
	return p.attach(&p.state)
}

// examinePair returns what another program has changed at the pair of interfaces.
func (p *Plane) examinePair() ([]health.Problem, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segmented == 0 {
		return nil, nil
	}
	changed, err := changedPair(p.segmented)
	if err != nil || changed == "" {
		// A strict filter drops what the program leaves of the segments, which has sources behind
		// other interfaces.
		problems, e := condition.ReversePath(program.Segmented).Examine()
		return problems, errors.Join(err, e)
	}
	return []health.Problem{{
		Text:   "the gateway's pair of interfaces is not as it has been set, so that super-packets may be lost or not segmented: " + changed,
		Remedy: "restart the gateway",
	}}, nil
}

// changedPair returns what is different at the pair whose second interface has this index; empty if
// nothing is.
func changedPair(index int) (string, error) {
	whole, err := bpf.IntactPair(program.Segmenter, program.Segmented, index)
	if err != nil || !whole {
		return "one is missing, down or has another MTU", err
	}
	for _, name := range []string{program.Segmenter, program.Segmented} {
		on, err := offload.Offloads(name)
		if err != nil {
			return "", err
		}
		if len(on) > 0 {
			return fmt.Sprintf("%s has the offloads %s", name, strings.Join(on, ", ")), nil
		}
	}
	return "", nil
}

// restorePair sets the pair of interfaces again.
func (p *Plane) restorePair() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.segmented = 0
	return p.attach(&p.state)
}
