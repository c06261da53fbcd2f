package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// captureTable is the name of the table that SetCaptures makes.
const captureTable = "tabane-proxy"

// Capture gives TCP connections that arrive at an interface, and whose destination is not this
// host, to a listening socket of this host that is transparent (TPROXY). Their packets get Mark, by
// which a policy rule delivers them here.
type Capture struct {
	Interface string
	// Ports are the destination ports; nil: all.
	Ports []uint16
	// To is the address of the listening socket; its family is that of the connections.
	To   netip.AddrPort
	Mark uint32
}

// SetCaptures replaces the captures of this network namespace, at once; none removes the table. It
// returns a *feature.Error if the kernel has no TPROXY.
func SetCaptures(list []Capture) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("set captures: %w", err)
	}
	t := &nftables.Table{Name: captureTable, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	if len(list) > 0 {
		t = c.AddTable(t)
		chain := c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
		})
		for _, one := range list {
			if err := one.add(c, t, chain); err != nil {
				return fmt.Errorf("set captures of interface %q: %w", one.Interface, err)
			}
		}
	}
	err = supported(c.Flush(), "transparent proxy by nf_tables", "modprobe nft_tproxy nft_fib_inet, or use a kernel with CONFIG_NFT_TPROXY and CONFIG_NFT_FIB_INET")
	if err != nil {
		return fmt.Errorf("set captures: %w", err)
	}
	return nil
}

// add adds the rules of a capture: iifname, family, TCP, not to this host, port, tproxy, mark.
func (one Capture) add(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain) error {
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
		&expr.TProxy{Family: family, TableFamily: unix.NFPROTO_INET, RegAddr: 1, RegPort: 2},
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(one.Mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		&expr.Verdict{Kind: expr.VerdictAccept})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule})
	return nil
}

// Captures returns the number of rules of captures in this network namespace.
func Captures() (int, error) {
	c, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("read captures: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, fmt.Errorf("read captures: %w", err)
	}
	for _, t := range tables {
		if t.Name != captureTable {
			continue
		}
		rules, err := c.GetRules(t, &nftables.Chain{Name: "prerouting", Table: t})
		if err != nil {
			return 0, fmt.Errorf("read captures: %w", err)
		}
		return len(rules), nil
	}
	return 0, nil
}
