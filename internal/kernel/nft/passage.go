package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Passage are packets that the firewall of a host has to accept: the first ones of connections that
// are forwarded from one interface to another, or with Replies only those of connections that
// exist; with a Port, those that arrive for that port of this host; with Captured, those that a
// Capture delivers to it.
type Passage struct {
	// Version is that of IP: "ip" or "ip6".
	Version string
	// In is the interface that they arrive at, Out the one that they leave by.
	In, Out string
	Replies bool
	// Protocol is unix.IPPROTO_UDP or unix.IPPROTO_TCP.
	Protocol byte
	Port     uint16
	// Captured is the mark of a Capture; 0: they are not captured. Port then is that of another
	// host, 0 any.
	Captured uint32
	// Mark, unless Bits is 0, is what they have in Bits, whatever the other fields say.
	Mark, Bits uint32
}

var protocolNames = map[byte]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp"}

// String is the rule that accepts the packets, as nft writes it.
func (p Passage) String() string {
	switch {
	case p.Bits != 0:
		return fmt.Sprintf("meta mark and %#x == %d accept", p.Bits, p.Mark)
	case p.Captured != 0:
		return fmt.Sprintf("iifname %s meta mark %d accept", p.In, p.Captured)
	case p.Port != 0:
		return fmt.Sprintf("iifname %s %s dport %d accept", p.In, protocolNames[p.Protocol], p.Port)
	case p.Replies:
		return fmt.Sprintf("iifname %s oifname %s ct state established,related accept", p.In, p.Out)
	}
	return fmt.Sprintf("iifname %s oifname %s accept", p.In, p.Out)
}

// arguments are those of iptables for the same rule.
func (p Passage) arguments() string {
	switch {
	case p.Captured != 0:
		return fmt.Sprintf("-i %s -m mark --mark %d -j ACCEPT", p.In, p.Captured)
	case p.Port != 0:
		return fmt.Sprintf("-i %s -p %s --dport %d -j ACCEPT", p.In, protocolNames[p.Protocol], p.Port)
	case p.Replies:
		return fmt.Sprintf("-i %s -o %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", p.In, p.Out)
	}
	return fmt.Sprintf("-i %s -o %s -j ACCEPT", p.In, p.Out)
}

// local reports whether the packets are delivered to this host.
func (p Passage) local() bool { return p.Port != 0 || p.Captured != 0 }

// hook is that of the chains which the packets pass.
func (p Passage) hook() nftables.ChainHook {
	if p.local() {
		return *nftables.ChainHookInput
	}
	return *nftables.ChainHookForward
}

// state is the state of their connection, of which nftables and xt_conntrack have the same bits.
func (p Passage) state() uint32 {
	if p.Replies {
		return expr.CtStateBitESTABLISHED
	}
	return expr.CtStateBitNEW
}

// meta returns what is known of a packet's meta data; nil is nothing.
func (p Passage) meta(key expr.MetaKey) []byte {
	n := binaryutil.NativeEndian
	switch key {
	case expr.MetaKeyIIFNAME:
		return interfaceName(p.In)
	case expr.MetaKeyIIF:
		return index(p.In)
	case expr.MetaKeyOIFNAME:
		if !p.local() {
			return interfaceName(p.Out)
		}
	case expr.MetaKeyOIF:
		if !p.local() {
			return index(p.Out)
		}
	case expr.MetaKeyNFPROTO:
		return []byte{map[string]byte{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}[p.Version]}
	case expr.MetaKeyPROTOCOL:
		return binary.BigEndian.AppendUint16(nil, map[string]uint16{"ip": unix.ETH_P_IP, "ip6": unix.ETH_P_IPV6}[p.Version])
	case expr.MetaKeyL4PROTO:
		if p.Protocol != 0 {
			return []byte{p.Protocol}
		}
	case expr.MetaKeyMARK:
		return n.PutUint32(p.Captured)
	default:
	}
	return nil
}

// index returns the number of an interface as it is compared: that of a missing one is no number of
// another.
func index(link string) []byte {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return binaryutil.NativeEndian.PutUint32(0)
	}
	return binaryutil.NativeEndian.PutUint32(uint32(i.Index))
}

// conntrack returns what is known of a packet's connection: its destination is not translated.
func (p Passage) conntrack(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		return binaryutil.NativeEndian.PutUint32(p.state())
	case expr.CtKeySTATUS:
		return binaryutil.NativeEndian.PutUint32(0)
	default:
		return nil
	}
}

// payload returns what is known of a packet's headers.
func (p Passage) payload(e *expr.Payload) content {
	const destinationPort = 2 // its offset in UDP and TCP
	protocolAt := map[string]uint32{"ip": 9, "ip6": 6}[p.Version]
	switch {
	case p.Protocol == 0:
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == protocolAt && e.Len == 1:
		return content{value: []byte{p.Protocol}}
	case p.Port == 0:
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == destinationPort && e.Len == 2:
		return content{value: binary.BigEndian.AppendUint16(nil, p.Port)}
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 0 && e.Len == 4: // both ports
		return content{value: binary.BigEndian.AppendUint32(nil, uint32(p.Port)), from: destinationPort}
	}
	return content{}
}

// truth is whether a condition holds for the packets.
type truth int

const (
	no    truth = iota
	maybe       // it does for some, or is not known
	yes
)

func truthOf(is bool) truth {
	if is {
		return yes
	}
	return no
}

// matches returns whether a match of iptables holds.
func (p Passage) matches(name string, info xt.InfoAny) truth {
	switch info := info.(type) {
	case *xt.ConntrackMtinfo3:
		if xt.ConntrackFlags(info.MatchFlags)&^(xt.ConntrackState|xt.ConntrackStateAlias) == 0 {
			return truthOf((uint32(info.StateMask)&p.state() != 0) != (xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState != 0))
		}
	case *xt.Udp:
		return p.ports(unix.IPPROTO_UDP, info.SrcPorts, info.DstPorts, uint8(info.InvFlags))
	case *xt.Tcp:
		if is := p.ports(unix.IPPROTO_TCP, info.SrcPorts, info.DstPorts, uint8(info.InvFlags)); is != yes || info.FlagsMask == 0 && info.Option == 0 {
			return is
		}
	case *xt.Unknown:
		return p.matchesRaw(name, 0, *info)
	}
	if name == "comment" {
		return yes
	}
	return maybe
}

// matchesRaw is matches for the bytes of a match in one of its revisions.
func (p Passage) matchesRaw(name string, revision uint8, info []byte) truth {
	n := binary.NativeEndian
	switch {
	case name == "comment":
		return yes
	case name == "state" && len(info) >= 4: // struct xt_state_info
		return truthOf(n.Uint32(info)&p.state() != 0)
	case name == "mark" && len(info) >= 9: // struct xt_mark_mtinfo1: the mark and its mask
		return truthOf((n.Uint32(info) == p.Captured&n.Uint32(info[4:])) != (info[8] != 0))
	case name == "conntrack" && revision == 3 && len(info) >= 152:
		// struct xt_conntrack_mtinfo3: match_flags, invert_flags and state_mask.
		flags, inverted, mask := n.Uint16(info[146:]), n.Uint16(info[148:]), n.Uint16(info[150:])
		return p.matches(name, &xt.ConntrackMtinfo3{ConntrackMtinfo2: xt.ConntrackMtinfo2{
			ConntrackMtinfoBase: xt.ConntrackMtinfoBase{MatchFlags: flags, InvertFlags: inverted}, StateMask: mask,
		}})
	case (name == "udp" || name == "tcp") && len(info) >= 9: // struct xt_udp, and the beginning of xt_tcp
		ports := [4]uint16{n.Uint16(info), n.Uint16(info[2:]), n.Uint16(info[4:]), n.Uint16(info[6:])}
		protocol, inverted := byte(unix.IPPROTO_UDP), info[8]
		if name == "tcp" {
			if len(info) < 12 {
				return maybe
			}
			if protocol, inverted = unix.IPPROTO_TCP, info[11]; info[8] != 0 || info[9] != 0 {
				return min(maybe, p.ports(protocol, [2]uint16(ports[:2]), [2]uint16(ports[2:]), inverted))
			}
		}
		return p.ports(protocol, [2]uint16(ports[:2]), [2]uint16(ports[2:]), inverted)
	}
	return maybe
}

// ports returns whether a match by the ports of a protocol holds. inverted has bits for both
// ranges.
func (p Passage) ports(protocol byte, source, destination [2]uint16, inverted uint8) truth {
	const invertedSource, invertedDestination = 1, 2
	switch {
	case p.Protocol == 0:
		return maybe
	case p.Protocol != protocol:
		return no
	case p.Port == 0 && (destination != [2]uint16{0, 1<<16 - 1} || inverted&invertedDestination != 0):
		return maybe
	case p.Port != 0 && (destination[0] <= p.Port && p.Port <= destination[1]) == (inverted&invertedDestination != 0):
		return no
	case source != [2]uint16{0, 1<<16 - 1} || inverted&invertedSource != 0:
		return maybe
	}
	return yes
}

// byIPTables reports whether a chain is one that iptables-nft would have made, whose rules it must
// be able to read.
func (c Chain) byIPTables() bool {
	return c.Family != "inet" && slices.Contains([]string{"filter", "mangle", "raw", "security"}, c.Table) && slices.Contains([]string{"FORWARD", "INPUT"}, c.Name)
}

// exprs is the rule that accepts the packets.
func (p Passage) exprs(c Chain) []expr.Any {
	if n := binaryutil.NativeEndian; p.Bits != 0 {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: n.PutUint32(p.Bits), Xor: n.PutUint32(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: n.PutUint32(p.Mark)},
			&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
		}
	}
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(p.In)},
	}
	switch port, all := p.Port, [2]uint16{0, 1<<16 - 1}; {
	case p.Captured != 0:
		list = append(list, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(p.Captured)})
	case port != 0:
		list = append(list, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p.Protocol}})
		switch {
		case !c.byIPTables():
			list = append(list,
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)})
		case p.Protocol == unix.IPPROTO_UDP:
			list = append(list, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: all, DstPorts: [2]uint16{port, port}}})
		default:
			list = append(list, &expr.Match{Name: "tcp", Info: &xt.Tcp{SrcPorts: all, DstPorts: [2]uint16{port, port}}})
		}
	default:
		list = append(list, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(p.Out)})
		const states = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
		n := binaryutil.NativeEndian
		switch {
		case !p.Replies:
		case c.byIPTables():
			none, mask := net.IPv4zero, net.IPMask(net.IPv4zero)
			if c.Family == "ip6" {
				none, mask = net.IPv6zero, net.IPMask(net.IPv6zero)
			}
			list = append(list, &expr.Match{Name: "conntrack", Rev: 3, Info: &xt.ConntrackMtinfo3{ConntrackMtinfo2: xt.ConntrackMtinfo2{
				ConntrackMtinfoBase: xt.ConntrackMtinfoBase{
					OrigSrcAddr: none, OrigSrcMask: mask, OrigDstAddr: none, OrigDstMask: mask,
					ReplSrcAddr: none, ReplSrcMask: mask, ReplDstAddr: none, ReplDstMask: mask, MatchFlags: uint16(xt.ConntrackState),
				},
				StateMask: uint16(states),
			}}})
		default:
			list = append(list,
				&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: n.PutUint32(states), Xor: n.PutUint32(0)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: n.PutUint32(0)})
		}
	}
	return append(list, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}
