package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Redirection is a table of its owner's: datagrams to a UDP port of this host arrive at another one
// if their data begins with a byte. The first datagram of a flow decides for all of them.
type Redirection struct {
	// Table is its name, in the family inet. Whatever else is in a table of that name is removed.
	Table string
	First byte
	// From and To are the ports.
	From, To uint16
}

// Set makes the table in the kernel, in place of one of that name. It returns a *feature.Error if
// the kernel cannot do that.
func (r *Redirection) Set() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("make table %q: %w", r.Table, err)
	}
	t := &nftables.Table{Name: r.Table, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	const destinationPort, data = 2, 8 // offsets in a datagram
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.From)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: data, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.First}},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.To)},
		&expr.Redir{RegisterProtoMin: 1},
	}})
	if err := supported(c.Flush(), "redirection by nf_tables", "modprobe nft_redir, or use a kernel with CONFIG_NFT_REDIR"); err != nil {
		return fmt.Errorf("make table %q: %w", r.Table, err)
	}
	return nil
}
