package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// captureTable is the name of the table that SetCaptures makes.
const captureTable = "tabane-proxy"

// Capture gives TCP connections that begin at an interface, and whose destination is not this host,
// to a listening socket of this host that is transparent (TPROXY). Their packets get Mark, by which
// a policy rule delivers them here. Connections that have begun without it go on as they are.
type Capture struct {
	Interface string
	// Ports are the destination ports; nil: all.
	Ports []uint16
	// To is the address of the listening socket; its family is that of the connections.
	To   netip.AddrPort
	Mark uint32
	// Ended: no more connections are captured; those that were go on.
	Ended bool
}

// SetCaptures replaces the captures of this network namespace, at once; none removes the table. It
// returns a *feature.Error if the kernel has no TPROXY.
func SetCaptures(list []Capture) error {
	err := setCaptures(list, true)
	if _, ok := errors.AsType[*feature.Error](err); ok {
		err = setCaptures(list, false)
	}
	if err != nil {
		return fmt.Errorf("set captures: %w", err)
	}
	return nil
}

// setCaptures is SetCaptures. Without begun, for kernels that have no expression for sockets, it
// captures all packets, also those of connections that have begun before.
func setCaptures(list []Capture, begun bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := &nftables.Table{Name: captureTable, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	if len(list) > 0 {
		t = c.AddTable(t)
		chain := func(name string) *nftables.Chain {
			return c.AddChain(&nftables.Chain{
				Name: name, Table: t, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
			})
		}
		first := chain("prerouting")
		for _, one := range list {
			if one.Ended {
				continue
			}
			if err := one.add(c, t, first, begun); err != nil {
				return fmt.Errorf("interface %q: %w", one.Interface, err)
			}
		}
		if begun {
			later := chain("established")
			for i, one := range list {
				if !slices.ContainsFunc(list[:i], func(o Capture) bool { return o.Interface == one.Interface && o.Mark == one.Mark }) {
					c.AddRule(&nftables.Rule{Table: t, Chain: later, Exprs: one.established()})
				}
			}
		}
	}
	return supported(c.Flush(), "transparent proxy by nf_tables", "modprobe nft_tproxy nft_fib_inet nft_socket, or use a kernel with CONFIG_NFT_TPROXY, CONFIG_NFT_FIB_INET and CONFIG_NFT_SOCKET")
}

// established is the rule for the packets of connections that were captured: iifname, TCP, a
// transparent socket of this host, mark.
func (one Capture) established() []expr.Any {
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(one.Interface)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Socket{Key: expr.SocketKeyTransparent, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}},
	}, one.mark()...)
}

// mark sets the mark and accepts.
func (one Capture) mark() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(one.Mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// add adds the rule of a capture: iifname, family, TCP, not to this host, SYN, port, tproxy, mark.
func (one Capture) add(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain, begun bool) error {
	if err := checkInterface(one.Interface); err != nil {
		return err
	}
	family := byte(unix.NFPROTO_IPV6)
	if one.To.Addr().Is4() {
		family = unix.NFPROTO_IPV4
	}
	rule := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(one.Interface)},
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
	if begun {
		const flags, syn, ack = 13, 0x02, 0x10
		rule = append(rule,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}})
	}
	if len(one.Ports) > 0 {
		set := &nftables.Set{Table: t, Anonymous: true, Constant: true, KeyType: nftables.TypeInetService}
		var elements []nftables.SetElement
		for _, p := range slices.Compact(slices.Sorted(slices.Values(one.Ports))) {
			elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, p)})
		}
		if err := c.AddSet(set, elements); err != nil {
			return err
		}
		rule = append(rule,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID})
	}
	rule = append(rule,
		&expr.Immediate{Register: 1, Data: one.To.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, one.To.Port())},
		&expr.TProxy{Family: family, TableFamily: unix.NFPROTO_INET, RegAddr: 1, RegPort: 2})
	rule = append(rule, one.mark()...)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule})
	return nil
}

// Captures returns the number of captures of this network namespace that have not ended, and whether
// there is a table of captures.
func Captures() (n int, present bool, err error) {
	c, t, err := find(captureTable)
	if err != nil {
		return 0, false, fmt.Errorf("read captures: %w", err)
	}
	if t == nil {
		return 0, false, nil
	}
	rules, err := c.GetRules(t, &nftables.Chain{Name: "prerouting", Table: t})
	if err != nil {
		return 0, true, fmt.Errorf("read captures: %w", err)
	}
	return len(rules), true, nil
}
